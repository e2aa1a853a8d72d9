package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// manyVolumes is a plane with many volumes. Each has a Pod of its own, and the Pods are spread over the nodes.
type manyVolumes struct {
	*plane
	// volumes and nodes are the numbers of both.
	volumes, nodes int
}

// nodeName returns the name of the node of a volume's Pod.
func (c *manyVolumes) nodeName(i int) string { return fmt.Sprint("m", i%c.nodes) }

// newManyVolumes creates the volumes and waits until all are bound. The Pods do not exist yet.
func newManyVolumes(t *testing.T, volumes, nodes int) *manyVolumes {
	t.Helper()
	c := &manyVolumes{volumes: volumes, nodes: nodes}
	c.plane = newPlaneAlone(t, func(config *csitest.Config) {
		for i := range nodes {
			config.OtherNodes = append(config.OtherNodes, "id-"+c.nodeName(i))
		}
	})
	for i := range nodes {
		c.plane.createNode(c.nodeName(i))
	}
	c.each(c.createBoundVolume)
	c.eventually(func() string {
		all, err := c.client.CoreV1().PersistentVolumeClaims("default").List(c.ctx, metav1.ListOptions{})
		c.must(err)
		bound := 0
		for _, claim := range all.Items {
			if claim.Status.Phase == corev1.ClaimBound {
				bound++
			}
		}
		if bound < volumes {
			return fmt.Sprint(bound, " claims are bound")
		}
		return ""
	})
	return c
}

// each calls f for every volume, for many volumes at the same time.
func (c *manyVolumes) each(f func(ctx context.Context, i int) error) {
	c.t.Helper()
	all, ctx := errgroup.WithContext(c.ctx)
	all.SetLimit(32)
	for i := range c.volumes {
		all.Go(func() error { return f(ctx, i) })
	}
	c.must(all.Wait())
}

// createBoundVolume creates one volume at the driver, its object and its claim.
func (c *manyVolumes) createBoundVolume(ctx context.Context, i int) error {
	name := fmt.Sprint("c", i)
	made, err := c.conn.ControllerClient().CreateVolume(ctx, &csipb.CreateVolumeRequest{
		Name: name, CapacityRange: &csipb.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csipb.VolumeCapability{
			csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil),
		},
	})
	if err != nil {
		return err
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: c.conn.Name, VolumeHandle: made.GetVolume().GetVolumeId(),
		}},
	}}
	if _, err := c.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = c.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: v.Name, StorageClassName: ptr.To(""),
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	return err
}

// createPod creates the Pod of one volume.
func (c *manyVolumes) createPod(ctx context.Context, i int) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)}, Spec: corev1.PodSpec{
		NodeName: c.nodeName(i), Containers: []corev1.Container{{Name: "c", Image: "none"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("c", i)},
		}}},
	}}
	_, err := c.client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func (c *manyVolumes) deletePod(ctx context.Context, i int) error {
	return c.client.CoreV1().Pods("default").Delete(ctx, fmt.Sprint("p", i),
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
}

// waitForAttachedCount waits until this many volumes are attached, on all nodes together.
func (c *manyVolumes) waitForAttachedCount(want int) {
	c.t.Helper()
	c.eventually(func() string {
		all, err := c.client.CoreV1().Nodes().List(c.ctx, metav1.ListOptions{})
		c.must(err)
		got := 0
		for _, n := range all.Items {
			got += len(n.Status.VolumesAttached)
		}
		if got != want {
			return fmt.Sprint(got, " volumes are attached, not ", want)
		}
		return ""
	})
}

// TestWritesOfManyAttachments: an attach costs two writes and a detach two, no write fails and no call is
// repeated, whether many volumes are attached to one node or to many nodes. Two other kinds of writes come
// in addition: the finalizer of each volume object, once, and the status of the nodes, for many volumes at
// a time.
func TestWritesOfManyAttachments(t *testing.T) {
	for _, nodes := range []int{1, 50} {
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) {
			const n = 100
			c := newManyVolumes(t, n, nodes)
			c.exactly(t, "attached", map[string]int{
				"attachdetach POST apis/volumeattachments": n, "attacher PATCH apis/volumeattachments": n,
				"attacher PATCH persistentvolumes": n,
			}, func() {
				c.each(c.createPod)
				c.waitForAttachedCount(n)
			})
			c.exactly(t, "detached",
				map[string]int{"attachdetach DELETE apis/volumeattachments": n, "attacher PATCH apis/volumeattachments": n},
				func() {
					c.each(c.deletePod)
					c.waitForAttachedCount(0)
					c.waitForDetached()
				})
			// The volume objects have their finalizers already.
			c.exactly(t, "attached again",
				map[string]int{"attachdetach POST apis/volumeattachments": n, "attacher PATCH apis/volumeattachments": n},
				func() {
					c.each(c.createPod)
					c.waitForAttachedCount(n)
				})
			for method, want := range map[string]int{"ControllerPublishVolume": 2 * n, "ControllerUnpublishVolume": n} {
				if got := c.calls(method); got != want {
					t.Errorf("%d calls of %s, not %d", got, method, want)
				}
			}
		})
	}
}

// exactly requires that f causes exactly these writes, in addition to writes of the nodes' status.
func (c *manyVolumes) exactly(t *testing.T, what string, want map[string]int, f func()) {
	t.Helper()
	from := len(c.writes.since(0))
	f()
	got := map[string]int{}
	for _, w := range c.writes.since(from) {
		kind := kindOf(w)
		switch {
		case strings.Contains(kind, "events"), !strings.HasPrefix(kind, "attach"):
		case w.code >= http.StatusBadRequest:
			got[fmt.Sprint(kind, " ", w.code)]++
		default:
			got[kind]++
		}
	}
	const status = "attachdetach PATCH nodes/status"
	told := got[status]
	t.Logf("%s: %v", what, got)
	// Each deleted Pod causes a write to its node soon, so nodes with few volumes are written for each.
	if most := c.nodes * 100; told == 0 || told > min(most, c.volumes) {
		t.Errorf("%s: %d writes of the nodes' status for %d volumes", what, told, c.volumes)
	}
	delete(got, status)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s cost %v, not %v", what, got, want)
	}
}
