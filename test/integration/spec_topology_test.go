package integration

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

const zone = "topology.test/zone"

// zonal is a driver whose volumes are where they are asked for first.
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

// inZones puts the nodes n1, n2 ... into zones.
func (p *plane) inZones(zones ...string) {
	p.t.Helper()
	for i, z := range zones {
		name := fmt.Sprint("n", i+1)
		p.label(name, strconv.Quote(z))
		// The drivers of a CSINode cannot be changed, only told anew.
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

// label writes a node's zone as JSON has it: null takes it away.
func (p *plane) label(node, value string) {
	p.t.Helper()
	_, err := p.client.CoreV1().Nodes().Patch(p.ctx, node, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, zone, value), metav1.PatchOptions{})
	p.must(err)
}

// newZones runs a control plane over three nodes in the zones a, b and c that
// knows all of them from its start.
func newZones(t *testing.T) *plane {
	t.Helper()
	p := newPlane(t, zonal)
	p.stop()
	p.node("n3")
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

func late(c *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	c.VolumeBindingMode = &mode
}

// zonesAsked returns the zones that a claim's volume was asked for in, "abc" for a,
// b and c.
func (p *plane) zonesAsked(claim string) (requisite, preferred string) {
	p.t.Helper()
	all := p.creations()
	i := slices.IndexFunc(all, func(r *csipb.CreateVolumeRequest) bool {
		return r.GetName() == "pvc-"+string(p.claim(claim).UID)
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

// TestTopologyOfALateClaim: the node comes first, within what the class allows,
// then the volume where the node is, and then only Pods that reach it.
func TestTopologyOfALateClaim(t *testing.T) {
	p := newZones(t)
	p.makeClass("two", late, allow("b", "c"))
	p.makeClass("any", late)
	for _, c := range []struct {
		argues, class, node, on, requisite, preferred string
	}{
		{"the class excludes the first node", "two", "", "n2", "bc", "bc"},
		{"the selected node's zone comes first", "two", "n3", "n3", "bc", "cb"},
		{"all zones of the cluster, beginning with the node's", "any", "n2", "n2", "abc", "bca"},
	} {
		name := c.class + c.on
		p.makeClaim(name, c.class)
		p.pod(name, c.node, name)
		p.bound(name)
		if on := p.placed(name); on != c.on || p.claim(name).Annotations[volume.AnnSelectedNode] != c.on {
			t.Errorf("%s: the pod is on %s, selected is %v", c.argues, on, p.claim(name).Annotations)
		}
		if requisite, preferred := p.zonesAsked(name); requisite != c.requisite || preferred != c.preferred {
			t.Errorf("%s: requisite %s, preferred %s", c.argues, requisite, preferred)
		}
		want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: []string{c.preferred[:1]}},
		}}}
		if got := p.getVolume(p.claim(name).Spec.VolumeName).Spec.NodeAffinity; got == nil ||
			!slices.EqualFunc(got.Required.NodeSelectorTerms, want, sameTerm) {
			t.Errorf("%s: the volume's affinity is %v", c.argues, got)
		}
	}
	// The fullest node is the only one that reaches the volume (S1-044).
	p.pod("second", "", "twon2")
	if on := p.placed("second"); on != "n2" {
		t.Errorf("the second pod is on %s", on)
	}
}

func sameTerm(a, b corev1.NodeSelectorTerm) bool { return a.String() == b.String() }

// TestTopologyOfAnImmediateClaim: all zones, or those that the class allows; the
// name says which comes first, and the claims of a set spread (S1-028 to
// S1-030, S1-038).
func TestTopologyOfAnImmediateClaim(t *testing.T) {
	p := newZones(t)
	p.makeClass("any")
	p.makeClass("two", allow("c", "b"))
	for _, c := range []struct{ claim, class, requisite, preferred string }{
		{"data-web-0", "any", "abc", "abc"},
		{"data-web-1", "any", "abc", "bca"},
		{"log-web-1", "any", "abc", "bca"},
		{"data-web-2", "any", "abc", "cab"},
		{"one-web-0", "two", "bc", "cb"},
		{"one-web-1", "two", "bc", "bc"},
	} {
		p.makeClaim(c.claim, c.class)
		p.bound(c.claim)
		if requisite, preferred := p.zonesAsked(c.claim); requisite != c.requisite || preferred != c.preferred {
			t.Errorf("%s: requisite %s, preferred %s, want %s and %s", c.claim, requisite, preferred, c.requisite, c.preferred)
		}
	}
}

// TestStaleTopology: while no Node has the labels that the driver spoke of the
// claim waits, its user hears of it, and it is tried again; once the driver was
// asked, it is asked the same again, whatever became of the nodes (S1-103,
// S4-035).
func TestStaleTopology(t *testing.T) {
	p := newPlane(t, zonal)
	p.stop()
	p.inZones("a", "b")
	p.label("n1", "null")
	p.label("n2", "null")
	p.makesThereFirst()
	p.start()
	p.makeClass("any")
	p.makeClaim("early", "any")
	p.tells("PersistentVolumeClaim", "early", volume.ReasonProvisioningFailed, "no node has a topology of the driver")
	// Nobody is told of a Node's labels.
	p.label("n2", `"b"`)
	p.bound("early")

	called, open := make(chan struct{}), make(chan struct{})
	before := len(p.creations())
	p.driver.OnCall("CreateVolume", func(n int, _ any) csitest.Action {
		if n > before+1 {
			return csitest.Action{}
		}
		close(called)
		<-open
		return csitest.Action{Err: status.Error(codes.Unavailable, "away")}
	})
	p.makeClaim("c", "any")
	<-called
	for _, n := range []string{"n1", "n2"} {
		p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, n, metav1.DeleteOptions{}))
	}
	close(open)
	p.bound("c")
	p.settled()
	all := p.creations()[before:]
	if len(all) < 2 {
		t.Fatalf("the driver was asked %d times", len(all))
	}
	for _, r := range all {
		if fmt.Sprint(r.GetAccessibilityRequirements()) != fmt.Sprint(all[0].GetAccessibilityRequirements()) ||
			len(r.GetAccessibilityRequirements().GetRequisite()) == 0 {
			t.Errorf("asked for %v, then for %v", all[0], r)
		}
	}
}
