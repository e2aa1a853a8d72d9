package supervise

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// driver is a program that leaves a process that must live on, as drivers do whose mounts are served by daemons. The
// process's pid is in the file "fuse".
func (w *supervised) driver() Program {
	return w.script(`
[ -e fuse ] || { setsid sleep 1000 >/dev/null 2>&1 & echo $! >fuse; }
echo $$ >>said
exec sleep 1000`)
}

// another waits until a program runs that is not the one of a record.
func (w *supervised) another(old Record) Record {
	w.Helper()
	return w.until("it runs again", func(r Record) bool { return runs(r) && r.PID != old.PID })
}

// TestSurvivorsOfACrash live, and do not hide the crash.
func TestSurvivorsOfACrash(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	w.run(w.driver())
	fuse := w.pidFrom("fuse")
	w.hears(1)
	first := w.until("it runs", runs)
	crash(w, first.PID)
	w.hears(2)
	now := w.another(first)
	if now.Restarts != 1 || now.LastExit != "killed by signal 9 (killed)" || !lives(fuse) {
		t.Errorf("the daemon lives: %v, record %+v", lives(fuse), now)
	}
	if now.Cgroup == first.Cgroup || !populated(first.Cgroup) || !populated(now.Cgroup) {
		t.Errorf("the cgroups are %s and %s", first.Cgroup, now.Cgroup)
	}
}

// TestSurvivorsOfARestart live; Stop ends them.
func TestSurvivorsOfARestart(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	p := w.driver()
	w.run(p)
	fuse := w.pidFrom("fuse")
	w.hears(1)
	first := w.until("it runs", runs)
	p.Generation = "restarted"
	w.run(p)
	w.hears(2)
	now := w.another(first)
	if !lives(fuse) || lives(first.PID) || now.Restarts != 0 {
		t.Errorf("the daemon lives: %v, the old driver: %v, record %+v", lives(fuse), lives(first.PID), now)
	}
	err := w.s.Stop(t.Context(), w.name())
	if ended := w.end(); !errors.Is(ended, ErrStopped) || err != nil {
		t.Errorf("Run ended with %v, Stop with %v", ended, err)
	}
	w.end = nil
	if lives(fuse) || lives(now.PID) {
		t.Errorf("after Stop: the daemon lives: %v, the driver: %v", lives(fuse), lives(now.PID))
	}
	w.noneLeft()
}

// TestSettledProgramIsNoDaemon: a driver that has served and then ends with success, as drivers do when they are
// asked to stop, is started again although it has left processes.
func TestSettledProgramIsNoDaemon(t *testing.T) {
	t.Parallel()
	w := newSupervised(t, func(o *Options) { o.settled = 50 * time.Millisecond })
	w.run(w.script(`
setsid sleep 1000 >/dev/null 2>&1 &
trap "exit 0" TERM
echo $$ >>said
while :; do sleep 0.01; done`))
	first := w.until("it has settled", func(r Record) bool { return r.Settled })
	w.hears(1)
	if err := unix.Kill(first.PID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	w.hears(2)
	if r := w.another(first); r.LastExit != "exit status 0" {
		t.Errorf("%+v", r)
	}
}

// TestHalfEndedProgramIsNoDaemon: nor are the remaining processes of a program that was asked to stop by a supervisor
// that died before the program did.
func TestHalfEndedProgramIsNoDaemon(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	p := w.script(`
setsid sleep 1000 >/dev/null 2>&1 &
trap "exit 0" TERM
echo $$ >>said
while :; do sleep 0.01; done`)
	w.run(p)
	w.hears(1)
	w.halt()
	old := w.record()
	main, err := openProcess(old.PID, old.StartTime)
	if err != nil {
		t.Fatal(err)
	}
	defer main.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.s.endMain(ctx, old, main); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := main.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.run(p)
	w.hears(2)
	if r := w.another(old); r.LastExit != "exit status 0" || !populated(old.Cgroup) {
		t.Errorf("%+v", r)
	}
}

func TestDaemon(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	w.startAndLeave(w.daemon())
	r := w.record()
	pids := w.programs()
	if len(pids) != 1 || !r.Daemonised || r.Restarts != 0 || !populated(r.Cgroup) {
		t.Fatalf("programs %v, record %+v", pids, r)
	}
	w.records = nil
	w.run(w.daemon())
	w.until("adopted", func(r Record) bool { return r.Daemonised })
	crash(w, pids[0])
	w.hears(2)
	r = w.until("it runs again", func(r Record) bool { return r.Restarts == 1 && r.Daemonised })
	if want := "the processes that it had left as a daemon have ended"; r.LastExit != want || len(w.programs()) != 1 {
		t.Errorf("programs %v, record %+v", w.programs(), r)
	}
	// Another program ends the daemon.
	old := w.programs()
	p := w.daemon()
	p.Generation = "2"
	w.run(p)
	if said := w.hears(3); strings.HasPrefix(said[2], "met") || lives(old[0]) {
		t.Errorf("programs have said %q", said)
	}
}
