package integration

import (
	"fmt"
	"net/http"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// createLateClass creates a class whose claims wait for their first consumer.
func (p *plane) createLateClass(name, provisioner string) {
	p.t.Helper()
	_, err := p.client.StorageV1().StorageClasses().Create(p.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	p.must(err)
}

func (p *plane) createLateClaim(name, class string, mode corev1.PersistentVolumeAccessMode) {
	p.t.Helper()
	_, err := p.client.CoreV1().PersistentVolumeClaims("default").Create(p.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}, metav1.CreateOptions{})
	p.must(err)
}

// waitForPlacement waits until a Pod has a node, and returns the node.
func (p *plane) waitForPlacement(name string) (node string) {
	p.t.Helper()
	p.eventually(func() string {
		pod, err := p.client.CoreV1().Pods("default").Get(p.ctx, name, metav1.GetOptions{})
		p.must(err)
		if node = pod.Spec.NodeName; node == "" {
			return fmt.Sprintf("pod %s has no node: %+v", name, pod.Status.Conditions)
		}
		return ""
	})
	return node
}

// waitForNoPlacement waits until the condition of a Pod says why the Pod has no node.
func (p *plane) waitForNoPlacement(name, why string) {
	p.t.Helper()
	p.eventually(func() string {
		pod, err := p.client.CoreV1().Pods("default").Get(p.ctx, name, metav1.GetOptions{})
		p.must(err)
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable &&
				c.Message == why {
				return ""
			}
		}
		return fmt.Sprintf("pod %s is on node %q, conditions %+v", name, pod.Spec.NodeName, pod.Status.Conditions)
	})
}

// TestPlacement: the Pod is created before its claim, which is bound on the node that was chosen for the
// Pod.
func TestPlacement(t *testing.T) {
	p := newPlane(t)
	p.createPod("web", "", "c")
	p.waitForNoPlacement("web", `persistentvolumeclaim "c" not found`)
	p.waitForEvent("Pod", "web", volume.ReasonClaimMissing, `"c"`)
	p.createLateClass("late", p.conn.Name)
	p.createLateClaim("c", "late", corev1.ReadWriteOnce)
	node := p.waitForPlacement("web")
	c := p.getClaim("c")
	if c.Annotations[volume.AnnSelectedNode] != node || c.Status.Phase != corev1.ClaimBound {
		t.Errorf("claim is %s with annotations %v, the pod is on %s", c.Status.Phase, c.Annotations, node)
	}
	p.waitForEvent("Pod", "web", volume.ReasonPlaced, node)
	p.waitForAttached(node, p.driver.Volumes()[0].ID)
}

// TestManyPodsWantVolumesAtOnce: each Pod gets a volume of its own at the first attempt, on a node that
// reaches the volume.
func TestManyPodsWantVolumesAtOnce(t *testing.T) {
	const n = 60
	p := newPlane(t)
	p.createLateClass("hand", volume.NoProvisioner)
	node := func(i int) string { return fmt.Sprint("n", 1+i%2) }
	for i := range n {
		p.createVolume(fmt.Sprint("v", i), "2Gi", "hand", func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = topology.Affinity([]topology.Segment{{"name": node(i)}})
		})
		p.createClaim(fmt.Sprint("c", i), "hand")
	}
	var all errgroup.Group
	for i := range n {
		all.Go(func() error { return p.tryPod(fmt.Sprint("p", i), "", fmt.Sprint("c", i)) })
	}
	p.must(all.Wait())
	for i := range n {
		where, claim := p.waitForPlacement(fmt.Sprint("p", i)), p.getClaim(fmt.Sprint("c", i))
		if got := p.getVolume(claim.Spec.VolumeName).
			Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]; got != where {
			t.Errorf("pod p%d is on node %s, its volume on %s", i, where, got)
		}
	}
	reserved := 0
	for _, w := range p.writes.since(0) {
		if kind, _ := objectOf(w.path); w.role != "placement" || kind != "persistentvolumes" {
			continue
		}
		if reserved++; w.code != http.StatusOK {
			t.Errorf("%v ended with %d", w, w.code)
		}
	}
	if reserved != n {
		t.Errorf("%d volumes were reserved for %d claims", reserved, n)
	}
}
