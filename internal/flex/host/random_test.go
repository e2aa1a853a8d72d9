package host

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// TestAnyChangesAreSeen: whatever is done to the directory, in whatever order
// and however fast, the watch alone makes the host know in the end what a first
// look would.
func TestAnyChangesAreSeen(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.start()
			random := rand.New(rand.NewPCG(seed, 0))
			var done []string
			for range 3 {
				for range 40 {
					done = append(done, r.change(random))
				}
				// What a link leads to in a directory that is not visible is seen
				// with the next notice (F-051).
				r.settled()
				for _, name := range []string{"a", "b", "c", "x~d"} {
					r.agrees(name, &done)
				}
			}
		})
	}
}

// change does one thing to the plugin directory, if it is possible, and returns
// what.
func (r *rig) change(random *rand.Rand) string {
	names := []string{"a", "b", "c", "x~d", ".e"}
	name, other := names[random.IntN(len(names))], names[random.IntN(len(names))]
	at := func(elem ...string) string { return filepath.Join(append([]string{r.Dir}, elem...)...) }
	exe, target := at(name, decide.ExecutableName(name)), at(other, decide.ExecutableName(other))
	version := r.script(fmt.Sprint("v", random.IntN(1000)), mountOnly)
	switch random.IntN(12) {
	case 0, 1, 2:
		_ = os.MkdirAll(at(name), 0o755)
		_ = os.WriteFile(at(name, ".new"), []byte(version), 0o755)
		_ = os.Rename(at(name, ".new"), exe)
		return "install " + name
	case 3:
		_ = os.WriteFile(exe, []byte(version), 0o755)
		return "write " + name
	case 4:
		_ = os.Remove(exe)
		return "remove " + name
	case 5:
		_ = os.RemoveAll(at(name))
		return "remove all of " + name
	case 6:
		_ = os.Rename(at(name), at(other))
		return "move " + name + " to " + other
	case 7:
		_ = os.Rename(at(name), filepath.Join(r.root, fmt.Sprint("away", random.Uint64())))
		return "move away " + name
	case 8:
		_ = os.Rename(exe, target)
		return "move executable of " + name + " to that of " + other
	case 9:
		_ = os.Symlink(other, at(name))
		_ = os.Symlink(filepath.Base(target), at(other, decide.ExecutableName(name)))
		return "link " + name + " to " + other
	case 10:
		_ = os.Symlink(filepath.Join("..", other, filepath.Base(target)), exe)
		return "link executable of " + name + " to that of " + other
	}
	_ = os.Chmod(exe, []os.FileMode{0o755, 0o777, 0o644}[random.IntN(3)])
	return "chmod " + name
}

// agrees waits until the host reports the real state of a driver.
func (r *rig) agrees(dir string, done *[]string) {
	r.t.Helper()
	c, refused, err := inspect(r.Dir, dir)
	r.try(err)
	name := strings.ReplaceAll(dir, "~", "/")
	var hash string
	if c != nil {
		hash = readHash(r.t, c.path)
	}
	r.eventually(fmt.Sprintf("%s is as it is there (%v, %q) after %q", name, c, refused.Message, *done), func() bool {
		s := r.state(name)
		switch {
		case c != nil:
			return s.State == decide.Ready && s.Hash == hash
		case refused.Reason != "":
			return s.State == decide.Broken && s.Message == refused.Message
		}
		return s.State == ""
	})
}
