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

// TestPlacementSpreads: Pods that are created at the same time are spread over the nodes, although none has
// a node when the next one is placed.
func TestPlacementSpreads(t *testing.T) {
	p := newPlane(t)
	p.createLateClass("late", p.conn.Name)
	count := map[string]int{}
	for i := range 6 {
		name := fmt.Sprint("p", i)
		p.createLateClaim(name, "late", corev1.ReadWriteOnce)
		p.createPod(name, "", name)
	}
	for i := range 6 {
		count[p.waitForPlacement(fmt.Sprint("p", i))]++
	}
	if count["n1"] != 3 || count["n2"] != 3 {
		t.Errorf("pods are %v", count)
	}
}

// TestPlacementByVolumes: volumes that no provisioner made, each on one node, are reserved for claims that
// wait for their consumers.
func TestPlacementByVolumes(t *testing.T) {
	p := newPlane(t)
	p.createLateClass("byhand", volume.NoProvisioner)
	p.createLateClaim("c", "byhand", corev1.ReadWriteOnce)
	p.createPod("web", "", "c")
	p.waitForNoPlacement("web",
		"0/2 nodes are available: n1: no volume of class byhand for claim c is available there; n2: no "+
			"volume of class byhand for claim c is available there")
	_, err := p.client.CoreV1().PersistentVolumes().Create(p.ctx,
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{
			Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: "byhand", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/disk"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: "name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n2"}},
					},
				}}},
			},
		}}, metav1.CreateOptions{})
	p.must(err)
	if node := p.waitForPlacement("web"); node != "n2" || p.getClaim("c").Spec.VolumeName != "disk" {
		t.Errorf("pod is on %s, claim has %s", node, p.getClaim("c").Spec.VolumeName)
	}
}

// TestOnePodAtATime: a claim for a single Pod is not given to a second Pod, on any node, until the first is
// gone.
func TestOnePodAtATime(t *testing.T) {
	p := newPlane(t)
	p.createLateClass("late", p.conn.Name)
	p.createLateClaim("c", "late", corev1.ReadWriteOncePod)
	p.createPod("first", "", "c")
	p.waitForPlacement("first")
	p.createPod("second", "", "c")
	p.waitForNoPlacement("second", `persistentvolumeclaim "c" is for one pod and pod first uses it`)
	p.deletePod("first")
	p.waitForPlacement("second")
}

// TestPlacementLimit: a node gets as many volumes as the driver's limit allows, and the next Pod is placed
// there when one of them is gone.
func TestPlacementLimit(t *testing.T) {
	p := newPlane(t)
	p.stop()
	for _, n := range []string{"n1", "n2"} {
		p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, n, metav1.DeleteOptions{}))
		_, err := p.client.StorageV1().CSINodes().Create(p.ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: n},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: p.conn.Name, NodeID: "id-" + n, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](1)},
			}}},
		}, metav1.CreateOptions{})
		p.must(err)
	}
	p.start()
	p.createLateClass("late", p.conn.Name)
	for _, name := range []string{"a", "b", "c"} {
		p.createLateClaim(name, "late", corev1.ReadWriteOnce)
	}
	p.createPod("a", "", "a")
	p.createPod("b", "", "b")
	if a, b := p.waitForPlacement("a"), p.waitForPlacement("b"); a == b {
		t.Errorf("both pods are on %s", a)
	}
	p.createPod("c", "", "c")
	limit := "driver " + p.conn.Name + " has its limit of 1 volumes there"
	p.waitForNoPlacement("c", fmt.Sprintf("0/2 nodes are available: n1: %s; n2: %s", limit, limit))
	freed := p.waitForPlacement("a")
	p.deletePod("a")
	if c := p.waitForPlacement("c"); c != freed {
		t.Errorf("the pod is on %s, room was on %s", c, freed)
	}
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
		all.Go(func() error { p.createPod(fmt.Sprint("p", i), "", fmt.Sprint("c", i)); return nil })
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
