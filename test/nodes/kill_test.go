package nodes

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// fewKills is how often `make test` kills a process.
const fewKills = 10

// TestKillAtAnyMoment creates and deletes volumes on two nodes while processes are killed at random
// moments: the control plane with its node agent and driver, the second node agent, and the driver of the
// second node. After each volume nothing may be left and no data may have changed.
func TestKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	seed, kills := seeds.First(t), seeds.Count(t, fewKills)
	w := startTwoNodes(t)
	random := mathrand.New(mathrand.NewPCG(seed, 0))
	for round := 0; w.killed.Load() < int64(kills); round++ {
		ctx, cancel := context.WithTimeout(t.Context(), planetest.Patience)
		stop := w.killNow(random)
		err := w.life(ctx, fmt.Sprint("life-", round))
		stop()
		if err != nil {
			w.explain(t)
			t.Fatalf("seed %d, round %d after %d kills: %v", seed, round, w.killed.Load(), err)
		}
		w.mustBeClean(ctx, t, round)
		cancel()
	}
	t.Logf("played %d kills, SEED=%d", w.killed.Load(), seed)
}

// twoNodes is a control plane and a second node with separate processes.
type twoNodes struct {
	plane *plane.Plane
	// address is where it listens, again after each restart: the kubeconfigs of the others point there.
	address string
	others  []*plane.Process
	killed  atomic.Int64
}

func startTwoNodes(t *testing.T) *twoNodes {
	t.Helper()
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		t.Fatal(err)
	}
	w := &twoNodes{address: plane.FreeAddress("127.0.0.1")}
	w.plane, err = plane.Start(t.Context(), dir, "--listen", w.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.close(t, dir) })
	config, err := w.plane.Invite("node2")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "n2")
	w.run(t, "node", "--join", config, "--root-dir", root, "--driver=false")
	w.run(t, "driver", "local", "--node-id", "node2", "--root-dir", root, "--pool", w.plane.Pool())
	return w
}

func (w *twoNodes) run(t *testing.T, args ...string) {
	t.Helper()
	p, err := plane.Run(w.plane.Dir+".log", "volplane", args...)
	if err != nil {
		t.Fatal(err)
	}
	w.others = append(w.others, p)
}

func (w *twoNodes) close(t *testing.T, dir string) {
	for _, p := range w.others {
		p.Stop()
	}
	w.plane.Stop()
	if t.Failed() {
		t.Logf("kept %s and %s.log", dir, dir)
		return
	}
	_ = os.RemoveAll(dir)
	_ = os.Remove(dir + ".log")
}

// killNow kills a random process after random times and restarts it immediately, until the returned
// function is called.
func (w *twoNodes) killNow(random *mathrand.Rand) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			pause := time.NewTimer(time.Duration(random.IntN(1500)) * time.Millisecond)
			select {
			case <-ctx.Done():
				return
			case <-pause.C:
			}
			if err := w.killOne(random.IntN(1 + len(w.others))); err != nil {
				panic(err)
			}
			w.killed.Add(1)
		}
	}()
	return func() { cancel(); <-done }
}

func (w *twoNodes) killOne(victim int) error {
	if victim < len(w.others) {
		w.others[victim].Kill()
		return w.others[victim].Restart()
	}
	w.plane.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), planetest.Patience)
	defer cancel()
	p, err := plane.Start(ctx, w.plane.Dir, "--listen", w.address)
	if err != nil {
		return err
	}
	w.plane = p
	return nil
}

// life creates a claim, writes to it on one node, reads it on the other node after an expansion there, and
// deletes everything.
func (w *twoNodes) life(ctx context.Context, name string) error {
	client, err := w.plane.Client()
	if err != nil {
		return err
	}
	l := &life{ctx: ctx, client: client, name: name}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"create claim", l.createClaim},
		{"mount on node1", func() error { return l.mount("node1") }},
		{"write", l.write},
		{"unmount on node1", func() error { return l.unmount("node1") }},
		{"mount on node2", func() error { return l.mount("node2") }},
		{"read back", l.read},
		{"grow", l.grow},
		{"read back after growing", l.read},
		{"unmount on node2", func() error { return l.unmount("node2") }},
		{"delete claim", l.deleteClaim},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// life creates a claim, writes to it on one node, reads it on the other node after an expansion there, and
// deletes everything.
type life struct {
	ctx    context.Context
	client kubernetes.Interface
	name   string
	path   string
	sum    [sha256.Size]byte
}

// eventually repeats try until it is done. Errors may come from a server that is being killed.
func (l *life) eventually(try func() (bool, error)) error {
	var result error
	err := testkit.Until(l.ctx, func() string {
		done, err := try()
		if result = err; done {
			return ""
		}
		return fmt.Sprint("it is not done: ", err)
	})
	return cmp.Or(err, result)
}

func (l *life) createClaim() error {
	return l.eventually(func() (bool, error) {
		class, err := plane.GrowingClass(l.ctx, l.client)
		if err != nil {
			return false, err
		}
		claim := plane.Claim(l.name, "320Mi")
		claim.Spec.StorageClassName = &class
		_, err = l.client.CoreV1().PersistentVolumeClaims("default").Create(l.ctx, claim, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), ignoreExists(err)
	})
}

func (l *life) mount(node string) error {
	pod := plane.Pod(l.name+"-"+node, l.name, "")
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	err := l.eventually(func() (bool, error) {
		_, err := l.client.CoreV1().Pods("default").Create(l.ctx, pod, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), ignoreExists(err)
	})
	if err != nil {
		return err
	}
	return l.eventually(func() (bool, error) {
		got, err := l.client.CoreV1().Pods("default").Get(l.ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		ok, message := plane.Mounted(got)
		if !ok {
			return false, fmt.Errorf("not mounted: %s", message)
		}
		l.path = cluster.MountPaths(got)["data"]
		return true, nil
	})
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (l *life) write() error {
	data := make([]byte, 1<<20)
	if _, err := rand.Read(data); err != nil {
		return err
	}
	l.sum = sha256.Sum256(data)
	f, err := os.Create(filepath.Join(l.path, "data"))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}

func (l *life) read() error {
	data, err := os.ReadFile(filepath.Join(l.path, "data"))
	if err != nil {
		return err
	}
	if sha256.Sum256(data) != l.sum {
		return fmt.Errorf("the data of %s changed", l.name)
	}
	return nil
}

func (l *life) grow() error {
	patch := []byte(`{"spec":{"resources":{"requests":{"storage":"640Mi"}}}}`)
	return l.eventually(func() (bool, error) {
		claim, err := l.client.CoreV1().PersistentVolumeClaims("default").Patch(l.ctx, l.name, types.MergePatchType, patch,
			metav1.PatchOptions{})
		if err != nil {
			return false, err
		}
		size := claim.Status.Capacity[corev1.ResourceStorage]
		return size.Value() >= 640<<20, nil
	})
}

func (l *life) unmount(node string) error {
	return l.gone(func() error {
		return l.client.CoreV1().Pods("default").Delete(l.ctx, l.name+"-"+node, metav1.DeleteOptions{})
	})
}

func (l *life) deleteClaim() error {
	return l.gone(func() error {
		return l.client.CoreV1().PersistentVolumeClaims("default").Delete(l.ctx, l.name, metav1.DeleteOptions{})
	})
}

func (l *life) gone(remove func() error) error {
	return l.eventually(func() (bool, error) {
		err := remove()
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// mustBeClean waits until nothing of any volume is left.
func (w *twoNodes) mustBeClean(ctx context.Context, t *testing.T, round int) {
	t.Helper()
	client, err := w.plane.Client()
	if err != nil {
		t.Fatal(err)
	}
	l := &life{ctx: ctx}
	err = l.eventually(func() (bool, error) {
		left, err := w.plane.Leftovers(ctx, client)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left over: %s", strings.Join(left, "; "))
		}
		return err == nil, err
	})
	if err != nil {
		w.explain(t)
		t.Fatalf("round %d after %d kills: %v", round, w.killed.Load(), err)
	}
}

// explain prints the last lines of the log.
func (w *twoNodes) explain(t *testing.T) {
	t.Helper()
	data, _ := os.ReadFile(w.plane.Dir + ".log")
	lines := strings.Split(string(data), "\n")
	t.Log(strings.Join(lines[max(0, len(lines)-40):], "\n"))
}
