package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/process/lifecycle"
)

// run is one call of Run.
type run struct {
	s       *Supervisor
	p       Program
	group   group
	output  string
	changed func(Record)
	log     *slog.Logger

	record   Record
	failures int
	// main is the main process; nil if there is none.
	main *process
	// tried are the versions of the files when the program was last started.
	tried [2]version
}

// keep keeps the program running until ctx ends; what it returns then has no meaning.
func (r *run) keep(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		err = r.open(ctx)
	}
	for err == nil && ctx.Err() == nil {
		switch {
		case r.main != nil:
			err = r.followMain(ctx)
		case r.record.Daemonised:
			err = r.followDaemon(ctx)
		case time.Now().Before(r.record.NextAt):
			r.pause(ctx)
		default:
			r.start(ctx)
		}
	}
	if r.main != nil {
		return errors.Join(err, r.main.Close())
	}
	return err
}

// open decides what is done with what there is of the program, and does it.
func (r *run) open(ctx context.Context) error {
	old, err := Read(r.s.Dir, r.p.Name)
	switch {
	case errors.Is(err, durable.ErrNewer):
		return err
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		r.log.Warn("the record cannot be read: what was started last is ended", "error", err)
	}
	f := found{known: err == nil && old.Boot == r.s.boot}
	if !f.known {
		old = Record{Cgroup: r.group.last()}
	} else if filepath.Dir(old.Cgroup) != string(r.group) {
		old.Cgroup = "" // it is that of another hierarchy, which is not mounted now
	}
	main, how, err := r.s.mainOf(old)
	if err != nil {
		return err
	}
	f.exit, f.same, f.alive, f.populated = how, old.Hash == r.p.hash(), main != nil, populated(old.Cgroup)
	f.daemonised, f.settled = old.Daemonised, old.Settled
	if f.known || f.populated {
		r.log.Info("found the program", "pid", old.PID, "do", f.open())
	}
	return r.do(ctx, f, old, main)
}

// do does what was decided about what was found.
func (r *run) do(ctx context.Context, f found, old Record, main *process) error {
	switch f.open() {
	case adopt:
		r.record, r.main = old, main
		r.changed(old)
		return nil
	case adoptDaemon:
		r.record = old
		r.becomeDaemon()
		return nil
	case replaceMain:
		defer main.Close()
		if err := r.s.endMain(ctx, old, main); err != nil {
			return err
		}
	case replaceAll:
		if err := r.s.endCgroup(ctx, old.Cgroup); err != nil {
			return err
		}
	case begin:
	}
	r.begin(f, old)
	return nil
}

// begin writes the first record: from now on there is something to remove.
func (r *run) begin(f found, old Record) {
	r.record = Record{
		Format: recordFormat, Name: r.p.Name, Hash: r.p.hash(), State: Starting, Since: now(), Boot: r.s.boot,
	}
	if f.known && f.same {
		r.record.Restarts, r.record.LastExit, r.record.LastLine = old.Restarts, old.LastExit, old.LastLine
		if old.State == Running {
			r.record.Restarts++
			r.record.LastExit, r.record.LastLine = f.exit.String(), lastLine(r.output, r.p.secrets())
		}
	}
	r.s.step("write first record")
	r.save()
}

// now returns the time as a record has it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// save writes the record and reports it. If writing fails, the program is supervised all the same; a later supervisor
// finds out the true state from the process.
func (r *run) save() {
	if err := r.s.write(r.record); err != nil {
		r.log.Warn("the record cannot be written", "error", err)
	}
	r.changed(r.record)
}

// followMain returns when the main process has ended or has settled, or when ctx has ended.
func (r *run) followMain(ctx context.Context) error {
	limited := ctx
	if !r.record.Settled {
		var cancel context.CancelFunc
		limited, cancel = context.WithDeadline(ctx, r.record.Since.Add(r.s.settled))
		defer cancel()
	}
	err := r.main.wait(limited)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		r.record.Settled = true
		r.s.step("write that it has settled")
		r.save()
		return nil
	case err != nil:
		return err
	}
	e := r.main.exit()
	e.outOfMemory = outOfMemory(r.record.Cgroup)
	err = r.main.Close()
	r.main = nil
	r.s.step("main process has ended")
	if becameDaemon(e, r.record.Settled, populated(r.record.Cgroup)) {
		r.becomeDaemon()
	} else {
		r.backOff(e.String())
	}
	return err
}

func (r *run) becomeDaemon() {
	r.record.Daemonised, r.record.PID, r.record.StartTime = true, 0, 0
	r.log.Info("the program is a daemon now: the processes that it has left are followed")
	r.save()
}

// followDaemon returns when nothing is left of the last start, or when ctx has ended.
func (r *run) followDaemon(ctx context.Context) error {
	if err := r.s.watches.emptied(ctx, r.record.Cgroup); err != nil {
		return err
	}
	r.s.step("daemon has ended")
	r.backOff("the processes that it had left as a daemon have ended")
	return nil
}

// backOff records an end, and when the program is started again.
func (r *run) backOff(how string) {
	settled := time.Since(r.record.Since) >= r.s.settled
	pause, failures := pauseAfter(r.s.Retry, r.failures, settled)
	r.failures = failures
	r.idle(BackingOff, pause)
	r.record.Restarts++
	r.record.LastExit, r.record.LastLine, r.record.Message = how, lastLine(r.output, r.p.secrets()), ""
	r.log.Warn("the program has ended", "exit", how, "restartsIn", pause)
	r.save()
}

// cannotStart records why the program was not started. A cause is logged once.
func (r *run) cannotStart(cause error) {
	pause, failures := pauseAfter(r.s.Retry, r.failures, false)
	r.failures = failures
	if message := cause.Error(); r.record.State != CannotStart || r.record.Message != message {
		r.log.Warn("the program cannot be started", "error", message)
		r.record.Message = message
	}
	r.idle(CannotStart, pause)
	r.save()
}

// idle changes the record to a state without a process.
func (r *run) idle(state State, pause time.Duration) {
	if r.record.State != state {
		r.record.Since = now()
	}
	r.record.State, r.record.NextAt = state, now().Add(pause)
	r.record.PID, r.record.StartTime, r.record.Settled, r.record.Daemonised = 0, 0, false, false
}

// changePause is the least time between two checks of a file that changes.
const changePause = 200 * time.Millisecond

// pause returns when the program may be started again, or when ctx has ended.
func (r *run) pause(ctx context.Context) {
	limited, cancel := context.WithDeadline(ctx, r.record.NextAt)
	defer cancel()
	if r.record.State != CannotStart {
		<-limited.Done()
		return
	}
	w := r.s.watches.watch()
	defer w.close()
	for limited.Err() == nil {
		var places []string
		for _, path := range r.files() {
			places = append(places, placesOf(path)...)
		}
		w.set(unix.IN_ATTRIB|unix.IN_CLOSE_WRITE|unix.IN_CREATE|unix.IN_MOVED_TO, places...)
		if r.versions() != r.tried {
			r.failures, r.record.NextAt = 0, time.Time{}
			return
		}
		_ = w.next(limited)
		// One change, such as a copy, is many events.
		lifecycle.Sleep(limited, changePause)
	}
}

// files returns what the kernel executes: the program, and the interpreter that it names.
func (r *run) files() [2]string {
	return [2]string{r.p.Argv[0], interpreterOf(r.p.Argv[0]).path}
}

// version is what of a file changes when it is written, exchanged, or given other rights; zero if there is none.
type version struct {
	device, inode uint64
	changed       unix.Timespec
}

func (r *run) versions() [2]version {
	var out [2]version
	for i, path := range r.files() {
		var st unix.Stat_t
		if path != "" && unix.Stat(path, &st) == nil {
			out[i] = version{st.Dev, st.Ino, st.Ctim}
		}
	}
	return out
}

// start starts the program.
func (r *run) start(ctx context.Context) {
	r.tried = r.versions()
	main, err := r.launch(ctx)
	if err != nil {
		r.cannotStart(err)
		return
	}
	r.main = main
	r.log.Info("started the program", "pid", main.pid)
	r.changed(r.record)
}

// launch starts the program, in steps that may each be the last one of this process: then the gate ends by itself, or
// the record names the process.
func (r *run) launch(ctx context.Context) (*process, error) {
	if err := checkProgram(r.p.Argv[0]); err != nil {
		return nil, err
	}
	if r.p.Prepare != nil {
		if err := r.p.Prepare(); err != nil {
			return nil, err
		}
	}
	r.s.step("make cgroup")
	cgroup, noCgroup := r.group.next()
	r.s.step("start gate")
	g, err := startGate(r.s.Gate, r.output)
	if err != nil {
		return nil, fmt.Errorf("start gate: %w", err)
	}
	defer g.close()
	r.s.step("enter cgroup")
	if noCgroup == nil {
		noCgroup = enter(cgroup, g.main.pid)
	}
	next := r.record
	next.State, next.Since, next.NextAt, next.Message = Running, now(), time.Time{}, ""
	next.PID, next.StartTime, next.Cgroup, next.NoCgroup = g.main.pid, g.main.start, cgroup, ""
	if noCgroup != nil {
		next.Cgroup, next.NoCgroup = "", noCgroup.Error()
	}
	r.s.step("write record")
	if err := r.s.write(next); err != nil {
		return nil, errors.Join(err, g.abandon())
	}
	r.s.step("say the word")
	if err := g.say(ctx, &r.p); err != nil {
		return nil, errors.Join(err, g.abandon())
	}
	r.s.step("hear of failure")
	if f := g.failure(ctx); f != nil {
		return nil, errors.Join(errors.New(cause(&r.p, *f)), g.abandon())
	}
	r.record = next
	return g.main, nil
}
