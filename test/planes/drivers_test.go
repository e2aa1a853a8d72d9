package planes

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/standalonetest"
	"volplane.dev/volplane/test/internal/array"
	"volplane.dev/volplane/test/internal/plane"
)

// serve runs the driver of an array on hosts, and creates its class.
func (w *controlPlanes) serve(a *array.Array, names ...string) {
	w.t.Helper()
	for _, name := range names {
		a.Serve(w.t, name, filepath.Join(w.dirOf(name), "node"))
	}
	_, err := w.clients[names[0]].StorageV1().StorageClasses().Create(w.t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "array"}, Provisioner: array.Driver,
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestMovedAfterDeath: a control plane with its own etcd dies, and its objects are moved to an etcd of members. It
// calls its drivers there without waiting for the long leases that it had before.
func TestMovedAfterDeath(t *testing.T) {
	t.Parallel()
	w := newEtcd(t, standalonetest.StartMembers(t, 3))
	w.network = "127.0.0."
	var err error
	if w.planes["n1"], err = plane.Start(t.Context(), w.dirOf("n1"), "--name", "n1"); err != nil {
		t.Fatal(err)
	}
	if w.clients["n1"], err = w.planes["n1"].Client(); err != nil {
		t.Fatal(err)
	}
	a := array.New(w.dirOf("array"))
	w.serve(a, "n1")
	w.use("n1", arrayClaim("before"), "n1")
	w.planes["n1"].Kill()
	w.volplaned(append([]string{"migrate-store", "--data-dir", w.dirOf("n1"), "--to", "external"}, w.storeFlags()...)...)
	w.start("n1")
	begin := time.Now()
	w.use("n1", arrayClaim("after"), "n1")
	t.Logf("mounted after %v", time.Since(begin).Round(time.Millisecond))
	for _, name := range []string{"before", "after"} {
		w.delete("n1", name)
	}
	w.nothingLeft("n1")
	if left := a.Volumes(); len(left) > 0 {
		t.Errorf("the array has %v", left)
	}
}

// TestDriverOfTheDead: the control plane that calls a driver dies for good. Another one calls it when the short lease
// has expired, for claims from before and after the death.
func TestDriverOfTheDead(t *testing.T) {
	t.Parallel()
	w := newControlPlanes(t, "n1", "n2")
	a := array.New(w.dirOf("array"))
	w.serve(a, "n1", "n2")
	other := map[string]string{"n1": "n2", "n2": "n1"}
	caller := w.callerOf(array.Driver)
	by := other[caller]
	w.use(by, arrayClaim("before"), by)
	w.planes[caller].Kill()
	begin := time.Now()
	w.use(by, arrayClaim("after"), by)
	t.Logf("mounted %v after the death of %s", time.Since(begin).Round(time.Millisecond), caller)
	for _, name := range []string{"before", "after"} {
		w.delete(by, name)
	}
	w.nothingLeft(by)
	if left := a.Volumes(); len(left) > 0 {
		t.Errorf("the array has %v", left)
	}
}

// callerOf returns which control plane calls a driver that several reach.
func (w *controlPlanes) callerOf(driver string) (caller string) {
	w.t.Helper()
	w.eventually("a control plane has the lease of driver "+driver, func() error {
		l, err := w.clients["n1"].CoordinationV1().Leases(volume.NamespaceSystem).Get(w.t.Context(),
			volume.ProvisionerLease(driver), metav1.GetOptions{})
		if err != nil {
			return err
		}
		for name := range w.planes {
			if plane.Holds(l, name) {
				caller = name
				return nil
			}
		}
		return fmt.Errorf("it has the holder %q", ptr.Deref(l.Spec.HolderIdentity, ""))
	})
	return caller
}

// volplaned runs a command of volplaned.
func (w *controlPlanes) volplaned(args ...string) {
	w.t.Helper()
	if out, err := exec.CommandContext(w.t.Context(), plane.Bin("volplaned"), args...).CombinedOutput(); err != nil {
		w.t.Fatalf("volplaned %q: %v: %s", args, err, out)
	}
}
