package planes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/upstream"
)

// life is the life of a claim on a node.
type life struct {
	*controlPlanes
	seen       *sync.Map
	objects    dynamic.Interface
	name, node string
	path       string
}

// live plays a life that it draws, by any API server.
func (h *livingHosts) live(t *testing.T, random *rand.Rand, name string) {
	own, config := *h.controlPlanes, h.asking(random.IntN(len(h.names)))
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	own.t, own.clients = t, map[string]kubernetes.Interface{anyPlane: client}
	l := &life{
		controlPlanes: &own, seen: h.seen, objects: objects, name: name, node: h.names[random.IntN(len(h.names))],
	}
	claim, grows, snapped := plane.Claim(name, "8Mi"), random.IntN(4) == 0, random.IntN(3) == 0
	switch {
	case random.IntN(3) == 0:
		claim, grows, snapped = arrayClaim(name), false, false
	case grows:
		claim = plane.Claim(name, "320Mi")
		claim.Spec.StorageClassName = ptr.To("growing")
	}
	l.path = l.begin(claim)
	l.write()
	if grows {
		l.grow(claim, "400Mi")
	}
	if snapped {
		l.snap(claim)
	}
	l.mustHave(l.path)
	l.delete(anyPlane, name)
}

// begin mounts a claim on the node, and returns the path.
func (l *life) begin(claim *corev1.PersistentVolumeClaim) string {
	l.t.Helper()
	path := l.use(anyPlane, claim, l.node)
	for _, kind := range kinds()[:2] {
		l.see(kind, claim.Name)
	}
	return path
}

// see records that the life has used an object, which it returns.
func (l *life) see(kind schema.GroupVersionResource, name string) (o *unstructured.Unstructured) {
	l.t.Helper()
	l.eventually(kind.Resource+" "+name, func() (err error) {
		o, err = l.objects.Resource(kind).Namespace("default").Get(l.t.Context(), name, metav1.GetOptions{})
		return err
	})
	l.seen.Store(o.GetUID(), nil)
	return o
}

// write writes the name of the life into its volume.
func (l *life) write() {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.path, "life"), []byte(l.name), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// mustHave fails the test unless the volume at a path has the data that the life wrote.
func (l *life) mustHave(path string) {
	l.t.Helper()
	if data, err := os.ReadFile(filepath.Join(path, "life")); err != nil || string(data) != l.name {
		l.t.Fatalf("%s has %q: %v", path, data, err)
	}
}

// grow has the volume of a claim grow while it is mounted.
func (l *life) grow(claim *corev1.PersistentVolumeClaim, size string) {
	l.t.Helper()
	want := resource.MustParse(size)
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = want
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	l.eventually("grow "+l.name, func() error {
		c, err := l.clients[anyPlane].CoreV1().PersistentVolumeClaims("default").Patch(l.t.Context(), l.name,
			types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil && c.Status.Capacity.Storage().Cmp(want) < 0 {
			err = fmt.Errorf("it has %v", c.Status.Capacity.Storage())
		}
		return err
	})
}

// snap takes a snapshot, and mounts a claim with its data on the node.
func (l *life) snap(source *corev1.PersistentVolumeClaim) {
	l.t.Helper()
	name, shots := l.name+"-shot", l.objects.Resource(upstream.Snapshots()).Namespace("default")
	l.eventually("create snapshot "+name, func() error {
		_, err := shots.Create(l.t.Context(), upstream.Object("VolumeSnapshot", name, map[string]any{
			"source": map[string]any{"persistentVolumeClaimName": l.name},
		}), metav1.CreateOptions{})
		return ignoreExists(err)
	})
	l.eventually("snapshot "+name+" is ready", func() error {
		s, err := upstream.Typed[upstream.SnapshotObject](l.see(upstream.Snapshots(), name))
		if err != nil || s.Status == nil || !ptr.Deref(s.Status.ReadyToUse, false) {
			return errors.Join(err, fmt.Errorf("it has the status %+v", s.Status))
		}
		return nil
	})
	copied := source.DeepCopy()
	copied.Name += "-copy"
	copied.Spec.DataSource = &corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(volume.GroupSnapshot), Kind: volume.KindSnapshot, Name: name,
	}
	l.mustHave(l.begin(copied))
	l.delete(anyPlane, copied.Name)
	l.eventually("delete snapshot "+name, func() error {
		err := shots.Delete(l.t.Context(), name, metav1.DeleteOptions{})
		if err == nil {
			return errors.New("it is being deleted")
		}
		return ignoreNotFound(err)
	})
}
