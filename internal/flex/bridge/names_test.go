package bridge

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// attachedTo says whether a node has the volume of a name, as the driver sees it.
func (w *world) attachedTo(name string) bool {
	_, err := os.Stat(filepath.Join(w.dir, "pool/attached", name, nodeName))
	return err == nil
}

// TestSharedName: two objects that stand for the same data are attached under
// one name. Who goes first does not take it from the other.
func TestSharedName(t *testing.T) {
	t.Parallel()
	options := map[string]string{"file": "data", "size": "32Mi"}
	for what, pair := range map[string]func(w *world) (first, second *volumeOf){
		"two PersistentVolumes": func(w *world) (*volumeOf, *volumeOf) {
			d := w.run(lofs)[0]
			return w.volume(d, "pv-1", options), w.volume(d, "pv-2", options)
		},
		"two Pods": func(w *world) (*volumeOf, *volumeOf) {
			d := w.run(lofs)[0]
			return w.inline(d, "1", options), w.inline(d, "2", options)
		},
		"a Pod and a PersistentVolume": func(w *world) (*volumeOf, *volumeOf) {
			d := w.run(lofs)[0]
			return w.inline(d, "1", options), w.volume(d, "pv-1", options)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.install("lofs")
			a, b := pair(w)
			bring := func(v *volumeOf) {
				if strings.HasPrefix(v.id, "csi-") {
					w.ok(v.publish())
				} else {
					v.forward()
				}
			}
			take := func(v *volumeOf) {
				w.ok(v.unpublish())
				if !strings.HasPrefix(v.id, "csi-") {
					w.ok(v.unstage())
					w.ok(v.detach())
				}
			}
			bring(a)
			bring(b)
			take(a)
			if !w.attachedTo("data") {
				t.Error("detached while the other one is mounted")
			}
			if _, err := os.Stat(filepath.Join(b.target, "lost+found")); err != nil {
				t.Error(err)
			}
			take(b)
			if w.attachedTo("data") {
				t.Error("the last one did not detach")
			}
			w.empty()
		})
	}
}

// TestNameOfAnother: the name of one object may be what the driver calls the
// volume of another one. To detach the first once more, of which nothing is known
// any more, does not take the second away.
func TestNameOfAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("lofs")
	d := w.run(lofs)[0]
	live := w.volume(d, "pv-1", map[string]string{"file": "db", "size": "32Mi"})
	other := w.volume(d, "db", map[string]string{"file": "other", "size": "32Mi"})
	live.forward()
	other.forward()
	other.back()
	// The answer was lost.
	w.ok(other.detach())
	if !w.attachedTo("db") {
		t.Error("the other one was detached")
	}
	live.back()
	w.empty()
}

// TestSharedNameInARace: one Pod goes while another one comes.
func TestSharedNameInARace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("lofs")
	d := w.run(lofs)[0]
	options := map[string]string{"file": "data", "size": "32Mi"}
	a, b := w.inline(d, "1", options), w.inline(d, "2", options)
	w.ok(a.publish())
	begun := filepath.Join(w.dir, "begun")
	w.on("detach", `>`+begun+`; sleep 0.2`)
	for i := range 4 {
		gone := make(chan error, 1)
		go func() { gone <- a.unpublish() }()
		if i%2 == 0 {
			w.eventually(func() error { return os.Remove(begun) })
		}
		w.ok(b.publish())
		w.ok(<-gone)
		if !w.attachedTo("data") {
			t.Fatal("mounted and not attached")
		}
		a, b = b, a
	}
	w.ok(a.unpublish())
	w.empty()
}

// TestLocks: who holds a key is alone with it, and nothing is kept of it then.
func TestLocks(t *testing.T) {
	t.Parallel()
	var l locks
	count := map[string]int{}
	for range 3 {
		done := make(chan struct{})
		for i := range 50 {
			go func() {
				defer func() { done <- struct{}{} }()
				key := fmt.Sprint(i % 2)
				defer l.lock(key)()
				if key == "0" {
					count[key]++
				}
			}()
		}
		for range 50 {
			<-done
		}
	}
	if count["0"] != 75 || len(l.all) != 0 {
		t.Errorf("%d, %d left", count["0"], len(l.all))
	}
}
