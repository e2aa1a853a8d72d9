package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// TestKeptIsACopy: a write to the driver's file does not change the copy that is kept,
// and only a version whose init succeeded is ever kept.
func TestKeptIsACopy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	name := decide.Name{Driver: "lofs"}
	r.install("lofs", r.script("good", attachable))
	good := r.ready("lofs")
	r.Keep(name, "pv1")
	path := filepath.Join(r.Dir, "lofs/lofs")
	r.try(os.WriteFile(path, []byte(r.script("bad", refusing)), 0o755))
	r.inState("lofs", decide.Broken)
	kept, err := r.Kept(name)
	r.try(err)
	if kept.Hash != good.Hash || readHash(t, kept.Path) != good.Hash || !kept.Capabilities.Attach {
		t.Errorf("%+v, want %s", kept, good.Hash)
	}
	// The next good one takes its place.
	r.install("lofs", r.script("better", mountOnly))
	r.eventually("the better one is ready", func() bool { return r.state("lofs").State == decide.Ready })
	better := r.ready("lofs")
	if now, err := r.Kept(name); err != nil || now != better {
		t.Errorf("a driver that is ready is used itself: %+v, %v", now, err)
	}
	r.eventually("the old one is not kept any more", func() bool {
		_, err := os.Stat(kept.Path)
		return os.IsNotExist(err)
	})
	if s := r.state("lofs"); s.LastGood != better.Hash {
		t.Errorf("%+v", s)
	}
}

// TestWhatIsKeptIsWhatItsNameSays: a file that a crash cut is not executed.
func TestWhatIsKeptIsWhatItsNameSays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	name := decide.Name{Driver: "lofs"}
	r.install("lofs", r.script("one", mountOnly))
	hash := r.ready("lofs").Hash
	r.end()
	kept := filepath.Join(r.StateDir, "kept/lofs", hash, "lofs")
	whole, err := os.ReadFile(kept)
	r.try(err, os.WriteFile(kept, whole[:20], 0o700),
		os.Rename(filepath.Join(r.Dir, "lofs"), filepath.Join(r.root, "lofs")))
	r.again()
	r.Keep(name, "pv1")
	r.start()
	if s := r.inState("lofs", decide.Removed); s.LastGood != "" {
		t.Errorf("%+v", s)
	}
	if d, err := r.Kept(name); err == nil {
		t.Errorf("%+v", d)
	}
	// The same version, installed again, is kept again.
	r.try(os.Rename(filepath.Join(r.root, "lofs"), filepath.Join(r.Dir, "lofs")))
	r.ready("lofs")
	if readHash(t, kept) != hash {
		t.Error("what was cut is not mended")
	}
}

// TestSubscribersSeeEveryChange in its order, and what was before.
func TestSubscribersSeeEveryChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.install("a", r.script("one", mountOnly))
	r.ready("a")
	told := make(chan State, 100)
	cancel := r.Subscribe(func(s State) { told <- s })
	expect := func(name string, want decide.Standing, inUse int) {
		t.Helper()
		if s := <-told; s.Name != name || s.State != want || s.InUse != inUse || s.Since.IsZero() {
			t.Errorf("%+v, want %s %s", s, name, want)
		}
	}
	expect("a", decide.Ready, 0)
	r.install("b", r.script("one", mountOnly))
	expect("b", decide.Probing, 0)
	expect("b", decide.Ready, 0)
	r.Keep(decide.Name{Driver: "b"}, "pv1")
	expect("b", decide.Ready, 1)
	r.Keep(decide.Name{Driver: "b"}, "pv1")
	r.try(os.Remove(filepath.Join(r.Dir, "b/b")))
	expect("b", decide.Removed, 1)
	r.Drop(decide.Name{Driver: "b"}, "pv1")
	expect("b", decide.Removed, 0)
	r.install("b", r.script("two", refusing))
	expect("b", decide.Probing, 0)
	expect("b", decide.Broken, 0)
	cancel()
	r.try(os.Remove(filepath.Join(r.Dir, "b/b")))
	r.settled()
	if len(told) > 0 {
		t.Errorf("told after the end: %+v", <-told)
	}
}

// TestRunEndsBesideAHangingInit: Run does not wait for the driver to stop.
func TestRunEndsBesideAHangingInit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.install("hangs", r.script("hangs", "exec sleep 600"))
	r.start()
	r.eventually("it is called", func() bool { return r.called("hangs") == 1 })
	r.end()
}

// TestRemovedDriverStillUnmounts: what is kept does what it is kept for (H16),
// under the name that the driver had.
func TestRemovedDriverStillUnmounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	name := decide.Name{Vendor: "example.com", Driver: "lofs"}
	r.install("example.com~lofs", r.script("one", `case $1 in
init) `+mountOnly+` ;;
mount) mount -t tmpfs kept "$2" && echo '{"status":"Success"}' ;;
unmount) umount "$2" && echo '{"status":"Success"}' ;;
esac`))
	d := r.ready("example.com/lofs")
	dir := filepath.Join(r.root, "pods/u/volumes/example.com~lofs/pv1")
	r.Keep(name, "pv1")
	if _, err := d.Mount(t.Context(), dir, "", decide.Volume{Name: "pv1"}); err != nil {
		t.Fatal(err)
	}
	r.try(os.RemoveAll(filepath.Dir(d.Path)))
	r.inState("example.com/lofs", decide.Removed)
	kept, err := r.Kept(name)
	r.try(err)
	if _, err := kept.Unmount(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
	calls := r.calls()
	if last := calls[len(calls)-1]; !strings.Contains(last, "/lofs unmount "+dir) {
		t.Errorf("called %q", last)
	}
	r.Drop(name, "pv1")
}
