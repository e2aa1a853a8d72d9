package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/testkit/logged"
)

// rig is a host over a directory of its own.
type rig struct {
	t *testing.T
	*Host
	root   string
	logged *logged.Text
	end    func()
}

// newRig prepares a host; start starts it.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, root: t.TempDir(), logged: &logged.Text{}}
	r.Host = &Host{
		Dir: filepath.Join(r.root, "exec"), StateDir: filepath.Join(r.root, "state"),
		Log:         slog.New(slog.NewTextHandler(r.logged, nil)),
		RescanEvery: time.Hour, // what is found is found by the watch
	}
	if err := os.Mkdir(r.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) start() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	var once sync.Once
	r.end = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				r.t.Error(err)
			}
		})
	}
	r.t.Cleanup(r.end)
	r.eventually("the directory is read", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.scanned
	})
}

// again is a host over the same directories, as after a restart.
func (r *rig) again() {
	r.end()
	old := r.Host
	r.Host = &Host{Dir: old.Dir, StateDir: old.StateDir, Log: old.Log, RescanEvery: old.RescanEvery}
}

func (r *rig) eventually(what string, holds func() bool) {
	r.t.Helper()
	testkit.Eventually(r.t, time.Minute, func() string {
		if holds() {
			return ""
		}
		return fmt.Sprintf("%s; %+v\n%s", what, r.List(), r.logged)
	})
}

// script is a driver that notes each call in "calls" beside the plugin
// directory.
func (r *rig) script(version string, answer string) string {
	return fmt.Sprintf("#!/bin/sh\n# %s\necho \"%s $0 $*\" >>%s/calls\n%s\n", version, version, r.root, answer)
}

const (
	mountOnly  = `echo '{"status":"Success","capabilities":{"attach":false}}'`
	attachable = `echo '{"status":"Success","capabilities":{"attach":true}}'`
	refusing   = `echo '{"status":"Failure","message":"no tool"}'; exit 1`
)

func (r *rig) calls() []string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.root, "calls"))
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")[0:strings.Count(string(data), "\n")]
}

// called returns how often a version was called.
func (r *rig) called(version string) (n int) {
	r.t.Helper()
	for _, c := range r.calls() {
		if strings.HasPrefix(c, version+" ") {
			n++
		}
	}
	return n
}

// try fails the test on an error.
func (r *rig) try(errs ...error) {
	r.t.Helper()
	for _, err := range errs {
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// install puts a driver in its place as installers do (seed 002).
func (r *rig) install(dir, script string) {
	r.t.Helper()
	path := filepath.Join(r.Dir, dir)
	name := decide.ExecutableName(dir)
	r.try(os.MkdirAll(path, 0o755), os.WriteFile(filepath.Join(path, "."+name), []byte(script), 0o755),
		os.Rename(filepath.Join(path, "."+name), filepath.Join(path, name)))
}

// state returns what the host reports about a driver.
func (r *rig) state(name string) State {
	for _, s := range r.List() {
		if s.Name == name {
			return s
		}
	}
	return State{}
}

// ready waits for a driver.
func (r *rig) ready(name string) *driver.Driver {
	r.t.Helper()
	n, err := decide.ParseName(name)
	r.try(err)
	var d *driver.Driver
	r.eventually(name+" is ready", func() bool {
		d, err = r.Get(n)
		return err == nil
	})
	return d
}

// inState waits until a driver has a standing.
func (r *rig) inState(name string, want decide.Standing) State {
	r.t.Helper()
	r.eventually(name+" is "+string(want), func() bool { return r.state(name).State == want })
	return r.state(name)
}

// settled waits until the host has seen all that was done before: a driver that
// is installed now is ready.
func (r *rig) settled() {
	r.t.Helper()
	name := fmt.Sprintf("barrier-%d", time.Now().UnixNano())
	r.install(name, "#!/bin/sh\n"+mountOnly+"\n")
	r.ready(name)
}

func readHash(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
