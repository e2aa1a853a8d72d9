package driver

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/volume"
)

// TestJudge: the state of a process is what its supervisor, the kernel and the API say together.
func TestJudge(t *testing.T) {
	yes, no := true, false
	at := time.Unix(1, 0)
	node, other := own("/bin/a").Processes[0], external("/run/x").Processes[0]
	controller := pair("/bin/a", "/bin/b").Processes[1]
	const failed = "exit status 1"
	running := supervise.Record{State: supervise.Running, Since: at, PID: 5, Restarts: 2, LastExit: failed}
	for name, c := range map[string]struct {
		seen    sighting
		process driverfile.Process
		state   string
		last    string
	}{
		"alive":          {sighting{record: running, lives: true, registered: &yes}, node, "alive", failed},
		"API not asked":  {sighting{record: running, lives: true}, node, "alive", failed},
		"not registered": {sighting{record: running, lives: true, registered: &no}, node, "not registered", failed},
		"a controller":   {sighting{record: running, lives: true, registered: &no}, controller, "alive", failed},
		"ended":          {sighting{record: running, registered: &yes}, node, "ended", failed},
		"no record":      {sighting{recordErr: fs.ErrNotExist, registered: &no}, node, "not started", ""},
		"bad record":     {sighting{recordErr: supervise.ErrDamaged}, node, "unknown", "the record is damaged"},
		"backing off": {
			sighting{record: supervise.Record{State: supervise.BackingOff, LastExit: failed, LastLine: "bad flag"}},
			node,
			"backing off", failed + ": bad flag",
		},
		"backing off, and nobody starts it": {
			sighting{record: supervise.Record{State: supervise.BackingOff, LastExit: failed}, late: true}, node, "ended", failed,
		},
		"cannot start": {
			sighting{record: supervise.Record{State: supervise.CannotStart, Message: "no such file"}},
			node, "cannot start",
			"no such file",
		},
		"starting":                {sighting{record: supervise.Record{State: supervise.Starting}}, node, "starting", ""},
		"somebody else's":         {sighting{answers: true, registered: &yes}, other, "alive", ""},
		"not by somebody else":    {sighting{registered: &yes}, other, "no answer", ""},
		"else's, not registered":  {sighting{answers: true, registered: &no}, other, "not registered", ""},
		"not by somebody, absent": {sighting{registered: &no}, other, "no answer", ""},
	} {
		got := c.seen.judge(c.process)
		if got.State != c.state || got.LastError != c.last {
			t.Errorf("%s: %s, %q; want %s, %q", name, got.State, got.LastError, c.state, c.last)
		}
		if (got.PID != 0) != c.seen.lives {
			t.Errorf("%s: process %d", name, got.PID)
		}
	}
}

// TestOverdue: a start that was planned is awaited for a while.
func TestOverdue(t *testing.T) {
	now := time.Unix(1000, 0)
	for planned, want := range map[time.Time]bool{
		{}: false, now.Add(time.Minute): false, now.Add(-time.Second): false, now.Add(-time.Minute): true,
	} {
		if got := overdue(planned, now); got != want {
			t.Errorf("%v: %t", planned, got)
		}
	}
}

// TestLives: a record of another boot, or of another process with the same PID, names no live process.
func TestLives(t *testing.T) {
	boot, err := durable.Boot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	var start uint64
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if err := json.Unmarshal([]byte(fields[19]), &start); err != nil {
		t.Fatal(err)
	}
	own := supervise.Record{State: supervise.Running, Boot: boot, PID: os.Getpid(), StartTime: start}
	if !own.Lives() {
		t.Errorf("this process does not live: %+v", own)
	}
	for name, change := range map[string]func(*supervise.Record){
		"another boot":    func(r *supervise.Record) { r.Boot = "x" },
		"another start":   func(r *supervise.Record) { r.StartTime++ },
		"another process": func(r *supervise.Record) { r.PID = 1 << 30 },
		"backing off":     func(r *supervise.Record) { r.State = supervise.BackingOff },
		"no process":      func(r *supervise.Record) { r.PID = 0 },
	} {
		if r := own; func() bool { change(&r); return r.Lives() }() {
			t.Errorf("%s: it lives", name)
		}
	}
	if !(supervise.Record{State: supervise.Running, Boot: boot, Daemonised: true}).Lives() {
		t.Error("what a daemon has left does not live")
	}
}

// TestList: each process of each driver has a line, also those of files that cannot be used.
func TestList(t *testing.T) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: hosted, VolumeHandle: "h"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{
		corev1.UniqueVolumeName(volume.UniqueName(hosted, "h")), "kubernetes.io/csi/other^h",
	}
	s := newStand(t, csiNode("n1", hosted), pv, &corev1.PersistentVolume{}, node)
	if err := s.files.Put(pair("/bin/a", "/bin/b")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(string(s.files), "broken.yaml"), []byte("a: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	s.record(t, hosted+"-node", func(r *supervise.Record) {
		r.State, r.LastExit, r.LastLine = supervise.BackingOff, "exit status 2", "no license"
	})
	all, err := s.list(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := printHosted(s.hostDrivers, all, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"NAME            ROLES        STATE          SINCE       VOLUMES   IN-USE   LAST-ERROR\n",
		"broken          <unknown>    invalid file   <unknown>   0         0        " + string(s.files) + "/broken.yaml: ",
		"x.example.com   node         backing off    60m         1         1        exit status 2: no license\n",
		"x.example.com   controller   not started    <unknown>   1         1        <none>\n",
	} {
		if !strings.Contains(s.out.String(), want) {
			t.Errorf("\n%swant %s", s.out, want)
		}
	}
}

// TestVersions: the version of a running driver is queried.
func TestVersions(t *testing.T) {
	config := csitest.Full()
	config.Name, config.Version = hosted, "1.2-beta"
	s := newStand(t, csiNode("n1", hosted))
	if err := s.files.Put(external(csitest.Start(t, config).Socket)); err != nil {
		t.Fatal(err)
	}
	all, err := s.list(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	versions(t.Context(), all)
	if err := printHosted(s.hostDrivers, all, true); err != nil || !strings.Contains(s.out.String(), "   1.2-beta   ") {
		t.Errorf("%v: %s", err, s.out)
	}
}

// TestVersionsWithoutASocket: the version of a running process that does not serve its socket is not queried.
func TestVersionsWithoutASocket(t *testing.T) {
	s := newStand(t, csiNode("n1"))
	if err := s.files.Put(own("/bin/a")); err != nil {
		t.Fatal(err)
	}
	s.record(t, hosted, func(r *supervise.Record) { r.PID, r.StartTime = os.Getpid(), startTimeOf(t, os.Getpid()) })
	all, err := s.list(t.Context(), []string{hosted})
	if err != nil || all[0].Processes[0].State != stateNotRegistered {
		t.Fatalf("%+v, %v", all, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), answerTime/2)
	defer cancel()
	if versions(ctx, all); ctx.Err() != nil {
		t.Errorf("the list waits for an answer: %v", ctx.Err())
	}
}

// TestListNamed: only the named drivers are listed, and each must exist.
func TestListNamed(t *testing.T) {
	s := newStand(t, csiNode("n1", hosted))
	for _, d := range []driverfile.Driver{own("/bin/a"), {
		APIVersion: driverfile.APIVersion, Kind: driverfile.Kind, Name: "another", Processes: external("/run/x").Processes,
	}} {
		if err := s.files.Put(d); err != nil {
			t.Fatal(err)
		}
	}
	if one, err := s.list(t.Context(), []string{hosted}); err != nil || len(one) != 1 || !*one[0].Registered {
		t.Errorf("%+v, %v", one, err)
	}
	if _, err := s.list(t.Context(), []string{"absent"}); err == nil || !strings.Contains(err.Error(),
		"driver absent has no file in "+string(s.files)+": see 'volplane driver list'") {
		t.Errorf("%v", err)
	}
	if got := s.names(); !slices.Equal(got, []string{"another", hosted}) {
		t.Errorf("completion offers %q", got)
	}
}
