package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

// TestSymlinks: the same rule at the start and later (F-051). A link to another
// driver's executable and one to a directory in the tree are drivers; what
// happens to their target is noticed where it is visible.
func TestSymlinks(t *testing.T) {
	t.Parallel()
	for _, early := range []bool{true, false} {
		r := newRig(t)
		if !early {
			r.start()
			r.settled()
		}
		r.install("first", r.script("one", mountOnly))
		r.try(os.Mkdir(filepath.Join(r.Dir, "second"), 0o755),
			os.Symlink("../first/first", filepath.Join(r.Dir, "second/second")),
			os.Symlink("first/first", filepath.Join(r.Dir, "first/third")), os.Symlink("first", filepath.Join(r.Dir, "third")),
			os.Remove(filepath.Join(r.Dir, "first/third")), os.Symlink("first", filepath.Join(r.Dir, "first/third")))
		if early {
			r.start()
		}
		for _, name := range []string{"first", "second", "third"} {
			if d := r.ready(name); filepath.Base(d.Path) != name {
				t.Errorf("%s is called as %s", name, d.Path)
			}
		}
		// The target changes: all three are new.
		hash := r.ready("first").Hash
		r.install("first", r.script("two", attachable))
		for _, name := range []string{"first", "second", "third"} {
			r.eventually(name+" is the new version", func() bool { return r.ready(name).Hash != hash })
		}
		// The link leads somewhere else.
		r.install("other", r.script("three", mountOnly))
		r.try(os.Symlink("other", filepath.Join(r.Dir, ".new")), os.Symlink("other", filepath.Join(r.Dir, "other/third")),
			os.Rename(filepath.Join(r.Dir, ".new"), filepath.Join(r.Dir, "third")))
		r.eventually("the other one is in use", func() bool { return r.ready("third").Hash == r.ready("other").Hash })
		// The target is removed.
		r.try(os.Remove(filepath.Join(r.Dir, "first/first")))
		if s := r.inState("second", decide.Broken); !strings.Contains(s.Message, "leads nowhere") {
			t.Errorf("%+v", s)
		}
		r.end()
	}
}

// TestLinkedDirectoryIsFilledLater: a link to a directory of the tree may come
// before what it leads to.
func TestLinkedDirectoryIsFilledLater(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.try(os.Symlink("first", filepath.Join(r.Dir, "second")))
	r.settled()
	r.try(os.Mkdir(filepath.Join(r.Dir, "first"), 0o755))
	r.settled()
	r.install("first", r.script("one", mountOnly))
	r.ready("first")
	r.try(os.Symlink("first", filepath.Join(r.Dir, "first/second")))
	r.ready("second")
}

// TestHiddenTargetIsNotWatched: a change in a directory that is not visible is
// found with the next notice, or by the rescan (F-051).
func TestHiddenTargetIsNotWatched(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hidden := filepath.Join(r.Dir, ".hidden")
	write := func(version string) {
		r.try(os.MkdirAll(hidden, 0o755),
			os.WriteFile(filepath.Join(hidden, ".x"), []byte(r.script(version, mountOnly)), 0o755),
			os.Rename(filepath.Join(hidden, ".x"), filepath.Join(hidden, "x")))
	}
	write("one")
	r.try(os.Symlink(".hidden", filepath.Join(r.Dir, "x")))
	r.start()
	r.ready("x")
	write("two")
	r.settled()
	r.eventually("it is found", func() bool { return r.called("two") == 1 })
}

// TestPlainFileIsNothing (Kubernetes: created later it is called at every
// request, until it is deleted), and so is another file in a driver's directory,
// which makes Kubernetes call init again.
func TestPlainFileIsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	put := func() {
		for _, path := range []string{"NOTES", "lofs/README", "lofs/lib.sh"} {
			r.try(os.WriteFile(filepath.Join(r.Dir, path), []byte(r.script("plain", mountOnly)), 0o755))
		}
	}
	r.install("lofs", r.script("one", mountOnly))
	put()
	r.start()
	r.ready("lofs")
	put()
	r.settled()
	if r.called("one") != 1 || r.called("plain") != 0 || r.state(`"NOTES"`).Name != "" {
		t.Errorf("calls %q, states %+v", r.calls(), r.List())
	}
}

// TestCapabilitiesFlip: a driver that attaches may be replaced by one that does
// not and the reverse (F-049); where volumes are in use, this is reported.
func TestCapabilitiesFlip(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	name := decide.Name{Driver: "lofs"}
	r.install("lofs", r.script("one", attachable))
	if !r.ready("lofs").Capabilities.Attach {
		t.Error("it does not attach")
	}
	r.install("lofs", r.script("two", mountOnly))
	r.eventually("it attaches no more", func() bool { return !r.ready("lofs").Capabilities.Attach })
	if s := r.state("lofs"); !s.Next.IsZero() {
		t.Errorf("%+v", s)
	}
	r.Keep(name, "pv1")
	r.install("lofs", r.script("three", attachable))
	r.eventually("it attaches", func() bool { return r.ready("lofs").Capabilities.Attach })
	s := r.state("lofs")
	if s.Next != volume.User() || !strings.Contains(s.Message, "attaches volumes now") {
		t.Errorf("%+v", s)
	}
	r.eventually("it is logged", func() bool { return strings.Contains(r.logged.String(), s.Message) })
	r.Drop(name, "pv1")
	if s := r.state("lofs"); !s.Next.IsZero() || s.InUse != 0 {
		t.Errorf("%+v", s)
	}
}

// TestBrokenIsTriedAgain: a broken driver is probed again without any user action (H9).
func TestBrokenIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.install("lofs", r.script("one", "[ -e "+r.root+"/tool ] || exit 1; "+mountOnly))
	r.inState("lofs", decide.Broken)
	r.try(os.WriteFile(filepath.Join(r.root, "tool"), nil, 0o600))
	r.ready("lofs")
}

// TestHangingInitDelaysNobody (Kubernetes: 3 s of one are 3 s of all).
func TestHangingInitDelaysNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.install("hangs", r.script("hangs", "exec sleep 600"))
	for _, name := range []string{"a", "b", "c"} {
		r.install(name, r.script("one", mountOnly))
	}
	r.start()
	for _, name := range []string{"a", "b", "c"} {
		r.ready(name)
	}
	r.install("late", r.script("one", mountOnly))
	r.ready("late")
	if s := r.state("hangs"); s.State != decide.Probing {
		t.Errorf("%+v", s)
	}
	if _, err := r.Get(decide.Name{Driver: "hangs"}); !errors.Is(err, ErrNotReady) ||
		!strings.Contains(err.Error(), "has not answered init") {
		t.Error(err)
	}
	if s := r.inState("hangs", decide.Broken); !strings.Contains(s.Message, "did not finish in time") {
		t.Errorf("after its limit: %+v", s)
	}
}

// TestRealOverflow: while the host is held up, the kernel has more events than its queue
// holds.
func TestRealOverflow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	defer r.Subscribe(func(State) {
		once.Do(func() {
			close(held)
			<-release
		})
	})()
	r.install("first", r.script("one", mountOnly))
	<-held
	// The kernel merges two identical events in a row. Events that were already read are buffered separately.
	for n := range 2*kernelKeeps(t) + 10_000 {
		r.try(os.WriteFile(filepath.Join(r.Dir, "first", fmt.Sprint(".", n%2)), []byte("x"), 0o600))
	}
	r.install("second", r.script("two", mountOnly))
	r.try(os.RemoveAll(filepath.Join(r.Dir, "first")))
	close(release)
	r.ready("second")
	r.eventually("the first is gone", func() bool { return r.state("first").State == "" })
	if !strings.Contains(r.logged.String(), "queue or buffer overflow") {
		t.Errorf("there was no overflow:\n%s", r.logged)
	}
	r.install("second", r.script("three", mountOnly))
	r.eventually("what came meanwhile is followed", func() bool { return r.called("three") == 1 })
}

// kernelKeeps is how many notices the kernel keeps for one who does not read them.
func kernelKeeps(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNullCapabilities (Kubernetes crashes) are the defaults, as absent ones.
func TestNullCapabilities(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	for name, answer := range map[string]string{
		"null": `{"status":"Success","capabilities":null}`, "absent": `{"status":"Success"}`,
		"inside": `{"status":"Success","capabilities":{"attach":null}}`, "empty": `{"status":"Success","capabilities":{}}`,
	} {
		r.install(name, r.script(name, "echo '"+answer+"'"))
		if d := r.ready(name); d.Capabilities != decide.Defaults() {
			t.Errorf("%s: %+v", name, d.Capabilities)
		}
	}
	r.install("wrong", r.script("wrong", `echo '{"status":"Success","capabilities":["attach"]}'`))
	r.inState("wrong", decide.Broken)
}

// TestDirectoryAlwaysExists: deleted, moved away or not there at all (F-044),
// and what is put into the new one is found (F-042).
func TestDirectoryAlwaysExists(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Dir = filepath.Join(r.root, "not/yet/exec")
	r.start()
	for _, away := range []func() error{
		func() error { return os.RemoveAll(r.Dir) },
		func() error { return os.Rename(r.Dir, filepath.Join(r.root, "away")) },
	} {
		r.install("lofs", r.script("one", mountOnly))
		r.ready("lofs")
		r.try(away())
		r.eventually("there is a new directory", func() bool {
			_, err := os.Stat(r.Dir)
			return err == nil && r.state("lofs").State == ""
		})
		r.install("other", r.script("one", mountOnly))
		r.ready("other")
		r.try(os.RemoveAll(filepath.Join(r.Dir, "other")))
		r.eventually("other is gone", func() bool { return r.state("other").State == "" })
	}
}

// TestUnreadableDirectory: what is known stays in use (F-047).
func TestUnreadableDirectory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.RescanEvery = 20 * time.Millisecond
	real := r.Dir
	r.Dir = filepath.Join(r.root, "link")
	r.try(os.Symlink(real, r.Dir))
	r.install("lofs", r.script("one", mountOnly))
	r.start()
	r.ready("lofs")
	// The link that it is leads to a file now.
	r.try(os.WriteFile(filepath.Join(r.root, "file"), nil, 0o600), os.Symlink("file", filepath.Join(r.root, "new")),
		os.Rename(filepath.Join(r.root, "new"), r.Dir))
	r.eventually("the host cannot read it", func() bool { return strings.Contains(r.logged.String(), "cannot be read") })
	r.ready("lofs")
	r.try(os.Symlink(real, filepath.Join(r.root, "new")), os.Rename(filepath.Join(r.root, "new"), r.Dir))
	r.install("lofs", r.script("two", mountOnly))
	r.eventually("it is followed again", func() bool { return r.called("two") == 1 })
}

// TestLostNotices: after an overflow, or when there are no notices at all,
// everything is read.
func TestLostNotices(t *testing.T) {
	t.Parallel()
	errs := make(chan error)
	r := newRig(t)
	r.newWatch = func() *watch { return &watch{errs: errs} }
	r.start()
	r.install("lofs", r.script("one", mountOnly))
	errs <- fsnotify.ErrEventOverflow
	r.ready("lofs")
	r.try(os.Remove(filepath.Join(r.Dir, "lofs/lofs")))
	errs <- fsnotify.ErrEventOverflow
	r.eventually("it is gone", func() bool { return r.state("lofs").State == "" })

	blind := newRig(t)
	blind.RescanEvery = 20 * time.Millisecond
	blind.newWatch = func() *watch { return &watch{} }
	blind.start()
	blind.install("lofs", blind.script("one", mountOnly))
	blind.ready("lofs")
	blind.install("lofs", blind.script("two", mountOnly))
	blind.eventually("the new version was called", func() bool { return blind.called("two") == 1 })
	blind.settled()
	if one, two := blind.called("one"), blind.called("two"); one != 1 || two != 1 {
		t.Errorf("looks alone call init: %d and %d times", one, two)
	}
}

// TestLinkChangesWhileItIsLookedAt: a plugin directory that is a link leads to a
// file now and then. What is in the directory is never refused for that.
func TestLinkChangesWhileItIsLookedAt(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir, link := filepath.Join(root, "dir"), filepath.Join(root, "link")
	script(t, filepath.Join(dir, "lofs", "lofs"), "#!/bin/sh\n")
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(root, "file"), nil, 0o600), os.Symlink(dir, link),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	over := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		next := filepath.Join(root, "next")
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			default:
			}
			if err := errors.Join(os.Symlink([]string{"file", "dir"}[i%2], next), os.Rename(next, link)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 20000 {
		if _, refused, _ := inspect(link, "lofs"); refused.Reason != "" {
			t.Errorf("refused: %s", refused.Message)
			break
		}
	}
	close(over)
	swaps.Wait()
}
