package integration

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

const zone = "topology.test/zone"

// zonal configures a driver whose volumes are in the first topology of the request.
func zonal(c *csitest.Config) { c.Plugin.AccessibilityConstraints = true }

func (p *plane) makesThereFirst() {
	p.driver.OnCall("CreateVolume", func(_ int, req any) csitest.Action {
		r := req.(*csipb.CreateVolumeRequest)
		return csitest.Action{After: true, Answer: &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
			VolumeId: "id-" + r.GetName(), CapacityBytes: r.GetCapacityRange().GetRequiredBytes(),
			AccessibleTopology: r.GetAccessibilityRequirements().GetPreferred()[:1],
		}}}
	})
}

// inZones assigns the nodes n1, n2 and so on to zones.
func (p *plane) inZones(zones ...string) {
	p.t.Helper()
	for i, z := range zones {
		name := fmt.Sprint("n", i+1)
		p.label(name, strconv.Quote(z))
		// The drivers of a CSINode cannot be changed, only registered again.
		p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, name, metav1.DeleteOptions{}))
		_, err := p.client.StorageV1().CSINodes().Create(p.ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.CSINodeSpec{
				Drivers: []storagev1.CSINodeDriver{{Name: p.conn.Name, NodeID: "id-" + name, TopologyKeys: []string{zone}}},
			},
		}, metav1.CreateOptions{})
		p.must(err)
	}
}

// label sets a node's zone to a JSON value; null removes it.
func (p *plane) label(node, value string) {
	p.t.Helper()
	_, err := p.client.CoreV1().Nodes().Patch(p.ctx, node, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, zone, value), metav1.PatchOptions{})
	p.must(err)
}

// newZones runs a control plane that knows three nodes in the zones a, b and c from its start.
func newZones(t *testing.T) *plane {
	t.Helper()
	p := newPlane(t, zonal)
	p.stop()
	p.createNode("n3")
	p.inZones("a", "b", "c")
	p.makesThereFirst()
	p.start()
	return p
}

func allow(zones ...string) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) {
		c.AllowedTopologies = []corev1.TopologySelectorTerm{
			{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zone, Values: zones}}},
		}
	}
}

// late has a class wait for the first consumer.
func late(c *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	c.VolumeBindingMode = &mode
}

// zonesAsked returns the zones in the request for a claim's volume, "abc" for a, b and c.
func (p *plane) zonesAsked(claim string) (requisite, preferred string) {
	p.t.Helper()
	all := p.creations()
	i := slices.IndexFunc(all, func(r *csipb.CreateVolumeRequest) bool {
		return r.GetName() == "pvc-"+string(p.getClaim(claim).UID)
	})
	if i < 0 {
		p.t.Fatal("no volume was asked for claim ", claim)
	}
	for _, s := range all[i].GetAccessibilityRequirements().GetRequisite() {
		requisite += s.GetSegments()[zone]
	}
	for _, s := range all[i].GetAccessibilityRequirements().GetPreferred() {
		preferred += s.GetSegments()[zone]
	}
	return requisite, preferred
}

// TestTopologyOfALateClaim: the node is chosen first, within the topologies that the class allows. Then the
// volume is made where the node is, and only Pods on nodes that reach it may use it.
func TestTopologyOfALateClaim(t *testing.T) {
	p := newZones(t)
	p.createClass("two", late, allow("b", "c"))
	p.createClass("any", late)
	for _, c := range []struct {
		argues, class, node, on, requisite, preferred string
	}{
		{"the class excludes the first node", "two", "", "n2", "bc", "bc"},
		{"the selected node's zone comes first", "two", "n3", "n3", "bc", "cb"},
		{"all zones of the cluster, beginning with the node's", "any", "n2", "n2", "abc", "bca"},
	} {
		name := c.class + c.on
		p.createClaim(name, c.class)
		p.createPod(name, c.node, name)
		p.waitForBound(name)
		if on := p.waitForPlacement(name); on != c.on || p.getClaim(name).Annotations[volume.AnnSelectedNode] != c.on {
			t.Errorf("%s: the pod is on %s, selected is %v", c.argues, on, p.getClaim(name).Annotations)
		}
		if requisite, preferred := p.zonesAsked(name); requisite != c.requisite || preferred != c.preferred {
			t.Errorf("%s: requisite %s, preferred %s", c.argues, requisite, preferred)
		}
		want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: []string{c.preferred[:1]}},
		}}}
		if got := p.getVolume(p.getClaim(name).Spec.VolumeName).Spec.NodeAffinity; got == nil ||
			!slices.EqualFunc(got.Required.NodeSelectorTerms, want, sameTerm) {
			t.Errorf("%s: the volume's affinity is %v", c.argues, got)
		}
	}
	// The fullest node is the only one that reaches the volume (S1-044).
	p.createPod("second", "", "twon2")
	if on := p.waitForPlacement("second"); on != "n2" {
		t.Errorf("the second pod is on %s", on)
	}
}

func sameTerm(a, b corev1.NodeSelectorTerm) bool { return a.String() == b.String() }
