package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	settings "volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/volume"
)

// TestOurAttacherTheirAttachDetach: volplane's attacher attaches and detaches for Kubernetes' attach/detach
// controller, as a sidecar in a cluster does.
func TestOurAttacherTheirAttachDetach(t *testing.T) {
	t.Parallel()
	s := newSide(t, "both")
	drivers := s.storage.start(t, twoNodes)
	s.theirAttachDetach(t)
	s.ours(t, drivers, "attacher")
	movesBetweenNodes(t, s, false)
}

// TestOurAttachDetachTheirAttacher: Kubernetes' attacher attaches and detaches for volplane's attach/detach
// controller.
func TestOurAttachDetachTheirAttacher(t *testing.T) {
	t.Parallel()
	s := newSide(t, "both")
	s.storage.start(t, twoNodes)
	s.ours(t, csi.NewSet(), "attachdetach")
	s.theirAttacher(t, s.storage.driver)
	movesBetweenNodes(t, s, true)
}

// mounting configures a driver whose volumes are tmpfs, because the node agent checks that a mount exists.
func mounting(c *csitest.Config) {
	twoNodes(c)
	c.Hooks = map[string]func(any) error{
		"NodePublishVolume": func(req any) error {
			target := req.(*csipb.NodePublishVolumeRequest).GetTargetPath()
			if err := os.MkdirAll(target, 0o750); err != nil {
				return err
			}
			return unix.Mount("none", target, "tmpfs", 0, "size=1m")
		},
		"NodeUnpublishVolume": func(req any) error {
			target := req.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath()
			return errors.Join(unix.Unmount(target, 0), os.Remove(target))
		},
	}
}

func twoNodes(c *csitest.Config) { c.NodeID, c.OtherNodes = "id-n1", []string{"id-n2"} }

// movesBetweenNodes moves a volume to a node and to another one, whose Pod waits until the first node has
// unmounted the volume, and then detaches it.
func movesBetweenNodes(t *testing.T, s side, again bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sceneLimit)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const (
		name  = corev1.UniqueVolumeName("kubernetes.io/csi/" + driverName + "^id-v")
		other = corev1.UniqueVolumeName("kubernetes.io/csi/" + driverName + "^id-other")
	)
	attached := func(node string, want ...corev1.UniqueVolumeName) {
		t.Helper()
		eventually(ctx, t, func() string {
			got, err := s.mayMount(ctx, node)
			must(err)
			if at := s.publishedTo("id-v"); !slices.Equal(got, want) ||
				(slices.Contains(at, "id-"+node) != slices.Contains(got, name)) {
				return fmt.Sprintf("node %s may mount %v, not %v; the driver has the volume at %v", node, got, want, at)
			}
			return ""
		})
	}
	must(s.makeNode(ctx, "n1", "id-n1"))
	must(s.makeNode(ctx, "n2", "id-n2"))
	must(s.wire(ctx, "default", "c", csiVolume("v", driverName, corev1.ReadWriteOnce)))
	must(s.makePod(ctx, "default", "p1", "n1", "c"))
	attached("n1", name)
	must(s.uses(ctx, "n1", name))
	// Somebody looks, and so has heard what n1 uses, before the Pod goes there.
	must(s.makePod(ctx, "default", "p2", "n2", "c"))
	eventually(ctx, t, func() string { return s.told(ctx, "p2", "FailedAttachVolume") })
	must(s.endPod(ctx, "default", "p1"))
	// Another volume comes to n1 meanwhile: somebody has looked at it again.
	must(s.wire(ctx, "default", "other", csiVolume("other", driverName, corev1.ReadWriteOnce)))
	must(s.makePod(ctx, "default", "p3", "n1", "other"))
	eventually(ctx, t, func() string {
		if all, err := s.mayMount(ctx, "n1"); err != nil || !slices.Contains(all, other) {
			return fmt.Sprintf("node n1 may mount %v, not %s: %v", all, other, err)
		}
		return ""
	})
	if at := s.publishedTo("id-v"); !slices.Equal(at, []string{"id-n1"}) {
		t.Fatalf("the volume is at %v while n1 uses it", at)
	}
	must(s.uses(ctx, "n1"))
	attached("n2", name)
	attached("n1", other)
	must(s.endPod(ctx, "default", "p2"))
	must(s.endPod(ctx, "default", "p3"))
	attached("n2")
	attached("n1")
	must(s.client.CoreV1().PersistentVolumes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	eventually(ctx, t, func() string { return s.left(ctx) })
	s.asked(t, again, "id-v", "ControllerPublishVolume", "ControllerUnpublishVolume", "ControllerPublishVolume",
		"ControllerUnpublishVolume")
}

// asked requires exactly these calls of the driver for a volume. With again, each may be made twice:
// Kubernetes' attacher does so when its cache has not seen its own write yet.
func (s side) asked(t *testing.T, again bool, id string, want ...string) {
	t.Helper()
	var got []string
	for _, c := range s.storage.driver.Calls() {
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
func (s side) publishedTo(id string) []string {
	for _, v := range s.storage.driver.Volumes() {
		if v.ID == id {
			return v.Nodes
		}
	}
	return nil
}

// told reports while a Pod has no event with the reason.
func (s side) told(ctx context.Context, pod, reason string) string {
	all, err := s.client.CoreV1().Events("default").List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	if err != nil || !slices.ContainsFunc(all.Items, func(e corev1.Event) bool { return e.Reason == reason }) {
		return fmt.Sprintf("pod %s is not told %s: %v", pod, reason, err)
	}
	return ""
}

// left reports attachments and volumes that still exist.
func (s side) left(ctx context.Context) string {
	attachments, err := s.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil || len(attachments.Items) > 0 {
		return fmt.Sprintf("attachments are left: %v %v", attachments, err)
	}
	volumes, err := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil || len(volumes.Items) > 0 {
		return fmt.Sprintf("volumes are left: %v %v", volumes, err)
	}
	return ""
}

// TestOurNodeTheirAttacher: Kubernetes' attacher attaches for volplane's attach/detach controller and node
// agent, with a driver that registers.
func TestOurNodeTheirAttacher(t *testing.T) {
	t.Parallel()
	s := newSide(t, "both")
	s.storage.start(t, mounting)
	s.ours(t, csi.NewSet(), "attachdetach")
	s.theirAttacher(t, s.storage.driver)
	s.agent(t)
	mountsAndUnmounts(t, s, true)
}

// TestOurAttacherOurNodeTheirAttachDetach: volplane's attacher and node agent work with Kubernetes'
// attach/detach controller.
func TestOurAttacherOurNodeTheirAttachDetach(t *testing.T) {
	t.Parallel()
	s := newSide(t, "both")
	drivers := s.storage.start(t, mounting)
	s.theirAttachDetach(t)
	s.ours(t, drivers, "attacher")
	s.agent(t)
	mountsAndUnmounts(t, s, false)
}

// agent runs volplane's node agent for n1, and registers the driver with it.
func (s side) agent(t *testing.T) {
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
	runAgent(t, s.server, "n1", dir)
	s.storage.driver.Register(registry)
}

// runAgent runs volplane's node agent for a node over a directory until the test
// ends.
func runAgent(t *testing.T, api server, node, root string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, log := make(chan error, 1), &lastWords{}
	go func() {
		ended <- app.Node(ctx, settings.NodeOptions{
			Name: node, RootDir: root, Config: api.ClientConfig("system:node:"+node, "system:nodes"),
			Drivers: csi.NewSet(), Log: slog.New(slog.NewTextHandler(log, nil)),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the node agent said:\n%s", log)
		}
	})
}

// mountsAndUnmounts creates a Pod with a volume and deletes it.
func mountsAndUnmounts(t *testing.T, s side, again bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sceneLimit)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.wire(ctx, "default", "c", csiVolume("v", driverName, corev1.ReadWriteOnce)))
	eventually(ctx, t, func() string {
		n, err := s.client.StorageV1().CSINodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil || len(n.Spec.Drivers) != 1 {
			return fmt.Sprintf("the driver is not registered: %v %v", n, err)
		}
		return ""
	})
	must(s.makePod(ctx, "default", "p1", "n1", "c"))
	eventually(ctx, t, func() string {
		p, err := s.client.CoreV1().Pods("default").Get(ctx, "p1", metav1.GetOptions{})
		must(err)
		for _, c := range p.Status.Conditions {
			if c.Type == volume.ConditionVolumesMounted && c.Status == corev1.ConditionTrue &&
				strings.HasPrefix(c.Message, "c=/") {
				return ""
			}
		}
		return fmt.Sprintf("pod p1 has nothing mounted: %+v", p.Status.Conditions)
	})
	must(s.client.CoreV1().Pods("default").Delete(ctx, "p1", metav1.DeleteOptions{}))
	eventually(ctx, t, func() string {
		if _, err := s.client.CoreV1().Pods("default").Get(ctx, "p1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint("pod p1 is still there: ", err)
		}
		return ""
	})
	must(s.client.CoreV1().PersistentVolumes().Delete(ctx, "v", metav1.DeleteOptions{}))
	eventually(ctx, t, func() string { return s.left(ctx) })
	s.asked(t, again, "id-v", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume",
		"NodeUnstageVolume", "ControllerUnpublishVolume")
}
