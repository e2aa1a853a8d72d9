package planes

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRestore: a backup is restored on one host, to the prefix of all control planes. All of them work with the
// restored objects, and take nothing away before a user accepts them.
func TestRestore(t *testing.T) {
	t.Parallel()
	w := newControlPlanes(t, "n1", "n2")
	w.mount("n1", "kept-n1", "n1")
	file := w.dirOf("backup.tar.gz")
	w.volplaned("backup", "--data-dir", w.dirOf("n1"), file)
	w.mount("n1", "late", "n2")
	before, err := w.planes["n2"].Mounts()
	if err != nil || len(before) == 0 {
		t.Fatal(before, err)
	}
	for _, p := range w.planes {
		p.Stop()
	}
	w.members.DeleteKeys(t)
	w.volplaned("restore", "--data-dir", w.dirOf("n1"), file)
	for _, name := range []string{"n1", "n2"} {
		w.start(name)
		w.bound(name, "kept-n1")
		_, err := w.clients[name].CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "late", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("%s has a claim that is newer than the backup: %v", name, err)
		}
	}
	w.mount("n2", "next", "n2")
	if now, err := w.planes["n2"].Mounts(); err != nil || len(now) < len(before) {
		t.Errorf("n2 had the mounts %q, and has %q, %v", before, now, err)
	}
	w.volplaned("restore", "--accept", "--data-dir", w.dirOf("n1"))
	w.eventually("the volume that is newer than the backup is unmounted", func() error {
		now, err := w.planes["n2"].Mounts()
		if err == nil && len(now) > len(before) {
			err = fmt.Errorf("there is %q", now)
		}
		return err
	})
	for _, name := range []string{"kept-n1", "next"} {
		w.delete("n2", name)
	}
}
