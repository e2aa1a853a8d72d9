package attaching

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestOurAttacherTheirAttachDetach: volplane's attacher attaches and detaches for Kubernetes' attach/detach
// controller, as a sidecar in a cluster does.
func TestOurAttacherTheirAttachDetach(t *testing.T) {
	t.Parallel()
	s := differential.NewSide(t, "both", topic{})
	drivers := s.Storage.Start(t, upstream.TwoNodes)
	theirAttachDetach(t, s)
	s.Ours(t, drivers, "attacher")
	movesBetweenNodes(t, s, false)
}

// TestOurAttachDetachTheirAttacher: Kubernetes' attacher attaches and detaches for volplane's attach/detach
// controller.
func TestOurAttachDetachTheirAttacher(t *testing.T) {
	t.Parallel()
	s := differential.NewSide(t, "both", topic{})
	s.Storage.Start(t, upstream.TwoNodes)
	s.Ours(t, csi.NewSet(), "attachdetach")
	theirAttacher(t, s, s.Storage.Driver)
	movesBetweenNodes(t, s, true)
}

// movesBetweenNodes moves a volume to a node and to another one, whose Pod waits until the first node has
// unmounted the volume, and then detaches it.
func movesBetweenNodes(t *testing.T, s side, again bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const (
		name  = corev1.UniqueVolumeName("kubernetes.io/csi/" + differential.DriverName + "^id-v")
		other = corev1.UniqueVolumeName("kubernetes.io/csi/" + differential.DriverName + "^id-other")
	)
	attached := func(node string, want ...corev1.UniqueVolumeName) {
		t.Helper()
		upstream.Eventually(ctx, t, func() string {
			got, err := mayMount(ctx, s, node)
			must(err)
			if at := publishedTo(s, "id-v"); !slices.Equal(got, want) ||
				(slices.Contains(at, "id-"+node) != slices.Contains(got, name)) {
				return fmt.Sprintf("node %s may mount %v, not %v; the driver has the volume at %v", node, got, want, at)
			}
			return ""
		})
	}
	must(s.MakeNode(ctx, "n1", "id-n1"))
	must(s.MakeNode(ctx, "n2", "id-n2"))
	must(s.Wire(ctx, "default", "c", differential.CSIVolume("v", differential.DriverName, corev1.ReadWriteOnce)))
	must(makePod(ctx, s, "default", "p1", "n1", "c"))
	attached("n1", name)
	must(uses(ctx, s, "n1", name))
	// The controller reconciles, and so sees what n1 uses, before the Pod is created there.
	must(makePod(ctx, s, "default", "p2", "n2", "c"))
	upstream.Eventually(ctx, t, func() string { return told(ctx, s, "p2", "FailedAttachVolume") })
	must(endPod(ctx, s, "default", "p1"))
	// Another volume reaches n1 in between, which shows that the controller has reconciled it again.
	must(s.Wire(ctx, "default", "other", differential.CSIVolume("other", differential.DriverName, corev1.ReadWriteOnce)))
	must(makePod(ctx, s, "default", "p3", "n1", "other"))
	upstream.Eventually(ctx, t, func() string {
		if all, err := mayMount(ctx, s, "n1"); err != nil || !slices.Contains(all, other) {
			return fmt.Sprintf("node n1 may mount %v, not %s: %v", all, other, err)
		}
		return ""
	})
	if at := publishedTo(s, "id-v"); !slices.Equal(at, []string{"id-n1"}) {
		t.Fatalf("the volume is at %v while n1 uses it", at)
	}
	must(uses(ctx, s, "n1"))
	attached("n2", name)
	attached("n1", other)
	must(endPod(ctx, s, "default", "p2"))
	must(endPod(ctx, s, "default", "p3"))
	attached("n2")
	attached("n1")
	must(s.Client.CoreV1().PersistentVolumes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	upstream.Eventually(ctx, t, func() string { return s.Left(ctx) })
	asked(t, s, again, "id-v", "ControllerPublishVolume", "ControllerUnpublishVolume", "ControllerPublishVolume",
		"ControllerUnpublishVolume")
}

// asked requires exactly these calls of the driver for a volume. With again, each may be made twice:
// Kubernetes' attacher does so when its cache has not seen its own write yet.
func asked(t *testing.T, s side, again bool, id string, want ...string) {
	t.Helper()
	var got []string
	for _, c := range s.Storage.Driver.Calls() {
		if r, ok := c.Request.(interface{ GetVolumeId() string }); ok && r.GetVolumeId() == id &&
			c.Method != "NodeGetVolumeStats" {
			got = append(got, c.Method)
		}
	}
	if again {
		got = slices.Compact(got)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the driver was asked %v, want %v", got, want)
	}
}

// publishedTo returns the nodes to which the driver has published a volume.
func publishedTo(s side, id string) []string {
	for _, v := range s.Storage.Driver.Volumes() {
		if v.ID == id {
			return v.Nodes
		}
	}
	return nil
}

// told returns a text while a Pod has no event with the reason.
func told(ctx context.Context, s side, pod, reason string) string {
	all, err := s.Client.CoreV1().Events("default").List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	if err != nil || !slices.ContainsFunc(all.Items, func(e corev1.Event) bool { return e.Reason == reason }) {
		return fmt.Sprintf("pod %s is not told %s: %v", pod, reason, err)
	}
	return ""
}

// TestOurNodeTheirAttacher: Kubernetes' attacher attaches for volplane's attach/detach controller and node
// agent, with a driver that registers.
func TestOurNodeTheirAttacher(t *testing.T) {
	t.Parallel()
	s := differential.NewSide(t, "both", topic{})
	s.Storage.Start(t, upstream.Mounting)
	s.Ours(t, csi.NewSet(), "attachdetach")
	theirAttacher(t, s, s.Storage.Driver)
	agent(t, s)
	mountsAndUnmounts(t, s, true)
}

// TestOurAttacherOurNodeTheirAttachDetach: volplane's attacher and node agent work with Kubernetes'
// attach/detach controller.
func TestOurAttacherOurNodeTheirAttachDetach(t *testing.T) {
	t.Parallel()
	s := differential.NewSide(t, "both", topic{})
	drivers := s.Storage.Start(t, upstream.Mounting)
	theirAttachDetach(t, s)
	s.Ours(t, drivers, "attacher")
	agent(t, s)
	mountsAndUnmounts(t, s, false)
}

// agent runs volplane's node agent for n1, and registers the driver with it.
func agent(t *testing.T, s side) {
	t.Helper()
	// Not t.TempDir: the name of a unix socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	registry := filepath.Join(dir, "plugins_registry")
	if err := os.MkdirAll(registry, 0o700); err != nil {
		t.Fatal(err)
	}
	upstream.RunAgent(t, s.Server, "n1", dir)
	s.Storage.Driver.Register(registry)
}

// mountsAndUnmounts creates a Pod with a volume and deletes it.
func mountsAndUnmounts(t *testing.T, s side, again bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Wire(ctx, "default", "c", differential.CSIVolume("v", differential.DriverName, corev1.ReadWriteOnce)))
	upstream.Eventually(ctx, t, func() string {
		n, err := s.Client.StorageV1().CSINodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil || len(n.Spec.Drivers) != 1 {
			return fmt.Sprintf("the driver is not registered: %v %v", n, err)
		}
		return ""
	})
	must(makePod(ctx, s, "default", "p1", "n1", "c"))
	upstream.Eventually(ctx, t, func() string {
		p, err := s.Client.CoreV1().Pods("default").Get(ctx, "p1", metav1.GetOptions{})
		must(err)
		for _, c := range p.Status.Conditions {
			if c.Type == volume.ConditionVolumesMounted && c.Status == corev1.ConditionTrue &&
				strings.HasPrefix(c.Message, "c=/") {
				return ""
			}
		}
		return fmt.Sprintf("pod p1 has nothing mounted: %+v", p.Status.Conditions)
	})
	must(s.Client.CoreV1().Pods("default").Delete(ctx, "p1", metav1.DeleteOptions{}))
	upstream.Eventually(ctx, t, func() string {
		if _, err := s.Client.CoreV1().Pods("default").Get(ctx, "p1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint("pod p1 is still there: ", err)
		}
		return ""
	})
	must(s.Client.CoreV1().PersistentVolumes().Delete(ctx, "v", metav1.DeleteOptions{}))
	upstream.Eventually(ctx, t, func() string { return s.Left(ctx) })
	asked(t, s, again, "id-v", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume",
		"NodeUnstageVolume", "ControllerUnpublishVolume")
}
