package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

var errDead = errors.New("the agent is dead")

// crasher stops an agent at one of its effects: no later effect happens, and the journal stays as it
// was then.
type crasher struct {
	dir string
	// at is the effect, the first is 1, 0 is none; after says that it still
	// happens.
	at    int
	after bool
	died  chan struct{}

	mu      sync.Mutex
	effects []string
	dead    bool
	journal map[string][]byte
	// made are the directories that are there when it strikes.
	made map[string]bool
}

// step says whether an effect does not happen, and whether it is the last.
func (d *crasher) step(name string) (last bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return false, errDead
	}
	d.effects = append(d.effects, name)
	if len(d.effects) != d.at {
		return false, nil
	}
	d.dead, d.journal, d.made = true, map[string][]byte{}, map[string]bool{}
	for _, dir := range d.directories() {
		d.made[dir] = true
	}
	files, _ := filepath.Glob(filepath.Join(d.dir, "journal", "*.json"))
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil {
			d.journal[f] = data
		}
	}
	close(d.died)
	if d.after {
		return true, nil
	}
	return true, errDead
}

// call lets the driver's work pass, or not.
func (d *crasher) call(_ context.Context, what string) error {
	if what == "info" {
		return nil
	}
	last, err := d.step(what)
	if err == nil && !last {
		return nil
	}
	lost := status.Error(codes.Unavailable, "nobody hears of it")
	if last && d.after {
		return afterwards{lost}
	}
	return lost
}

// write lets a write to the API pass, or not.
func (d *crasher) write(a clienttesting.Action) (bool, runtime.Object, error) {
	switch what := a.GetVerb() + " " + a.GetResource().Resource + " " + a.GetSubresource(); what {
	case "patch nodes status", "patch pods status", "delete pods ":
		if _, err := d.step(what); err != nil {
			return true, nil, err
		}
	}
	return false, nil, nil
}

// directories returns the directories of volumes, the innermost first.
func (d *crasher) directories() []string {
	var all []string
	for _, of := range []string{"pods", "plugins/kubernetes.io"} {
		_ = filepath.WalkDir(filepath.Join(d.dir, of), func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				all = append(all, path)
			}
			return nil
		})
	}
	slices.Reverse(all)
	return all
}

// restore restores the journal and the directories, and lets the next agent work.
func (d *crasher) restore(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	files, err := filepath.Glob(filepath.Join(d.dir, "journal", "*.json"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	for f, data := range d.journal {
		err = errors.Join(err, os.WriteFile(f, data, 0o600))
	}
	for _, dir := range d.directories() {
		if !d.made[dir] {
			err = errors.Join(err, os.Remove(dir))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	d.dead, d.at, d.died = false, 0, nil
}

// TestDeathAtEveryEffect: the agent crashes before or after each of its effects, and the next one
// completes its work: the Pod gets its volume in time, and nothing is left behind.
func TestDeathAtEveryEffect(t *testing.T) {
	t.Parallel()
	effects := runWithCrash(t, crashCase{})
	if len(effects) < 8 {
		t.Fatalf("effects: %v", effects)
	}
	for at := 1; at <= len(effects); at++ {
		for _, after := range []bool{false, true} {
			for _, goes := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d %s, after it: %v, pod goes: %v", at, effects[at-1], after, goes), func(t *testing.T) {
					runWithCrash(t, crashCase{at: at, after: after, goes: goes})
				})
			}
		}
	}
}

// crashCase says how an agent crashes, and when.
type crashCase struct {
	at    int
	after bool
	// goes says that the Pod goes while the agent is dead, full that the disk is
	// full from the time when the Pod has its volume.
	goes, full bool
}

func (l crashCase) world(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, noAttach(driverName))
	if l.full {
		w.smallDisk()
	}
	return w
}

// runWithCrash mounts a volume for a Pod and unmounts it, with one crash in between, and returns the
// effects. The Pod is deleted at the end, or while no agent runs.
func runWithCrash(t *testing.T, l crashCase) []string {
	t.Helper()
	w := l.world(t)
	x := &crasher{dir: w.dir, at: l.at, after: l.after, died: make(chan struct{})}
	for _, verb := range []string{"patch", "delete"} {
		w.client.PrependReactor(verb, "*", x.write)
	}
	d := newFakeDriver(driverName, w.dir)
	d.setHook(x.call)
	d.start(t)
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	w.run()
	reach := func(reached func() string) {
		t.Helper()
		died := x.died
		eventually(t, func() string {
			select {
			case <-died:
				died = nil
				w.stop()
				x.restore(t)
				if l.goes {
					w.markDeleted("p")
				}
				w.run()
			default:
			}
			return reached()
		})
	}
	reach(func() string {
		p, err := w.client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil || p.DeletionTimestamp != nil {
			return ""
		}
		if c := cluster.PodCondition(p, volume.ConditionVolumesMounted); !cluster.IsTrue(c) {
			return fmt.Sprintf("the pod says %+v", c)
		}
		return ""
	})
	if l.full {
		w.fill()
	}
	w.markDeleted("p")
	reach(func() string {
		_, err := w.client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		used := w.node().Status.VolumesInUse
		files, _ := filepath.Glob(filepath.Join(w.dir, "journal", "*.json"))
		if err == nil || len(used)+len(files) > 0 || d.leftover() != "" {
			return fmt.Sprint("left: ", err, used, files, d.leftover())
		}
		return ""
	})
	w.empty()
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.effects
}

// markDeleted marks a Pod as deleted, if it exists and is not marked yet.
func (w *world) markDeleted(name string) {
	w.t.Helper()
	if p, err := w.client.CoreV1().Pods("ns").Get(w.t.Context(), name, metav1.GetOptions{}); err == nil &&
		p.DeletionTimestamp == nil {
		w.terminate(name)
	}
}
