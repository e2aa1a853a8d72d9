package provisioning

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// rack is the driver's second topology key.
const rack = "topology.test/rack"

// gone is the name of a node that does not exist.
const gone = "n7"

// TestTopologyIsKubernetes does the same as TestProvisionerIsKubernetes, with drivers whose volumes cannot
// be reached from every node.
func TestTopologyIsKubernetes(t *testing.T) {
	t.Parallel()
	playProvisioning(t, drawTopology, func(s side) {
		zones(t, s)
		s.Storage.Placed = preferred()
	}, func(c *csitest.Config) { c.Plugin.AccessibilityConstraints = true })
}

// place is a node with its topology.
type place struct {
	name   string
	labels map[string]string
	// keys are those that the driver registered; without keys there is no driver.
	keys []string
}

func places() []place {
	both := []string{upstream.Zone, rack}
	return []place{
		{"n1", map[string]string{upstream.Zone: "a", rack: "r1"}, both},
		{"n2", map[string]string{upstream.Zone: "a", rack: "r2"}, both},
		{"n3", map[string]string{upstream.Zone: "b", rack: "r1"}, both},
		{"n4", map[string]string{upstream.Zone: "c", rack: "r1"}, both},
		// These cannot have a volume: a label is missing, or the driver.
		{"n5", map[string]string{upstream.Zone: "a"}, both},
		{"n6", map[string]string{upstream.Zone: "a", rack: "r1"}, nil},
	}
}

// zones creates the nodes.
func zones(t *testing.T, s side) {
	t.Helper()
	for _, p := range places() {
		if _, err := s.Client.CoreV1().Nodes().Create(t.Context(),
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.name, Labels: p.labels}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
		if p.keys != nil {
			n.Spec.Drivers = []storagev1.CSINodeDriver{{
				Name: differential.DriverName, NodeID: "id-" + p.name,
				TopologyKeys: p.keys,
			}}
		}
		if _, err := s.Client.StorageV1().CSINodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// drawTopology draws a sequence of provisioning with topologies.
func drawTopology(seed uint64, length int) sequence {
	return (&provisioningDice{dice: differential.NewDice(seed), topology: true}).provisioning(seed, length)
}

// node draws the node that the scheduler selects.
func (d *provisioningDice) node() string {
	if !d.topology {
		return "n1"
	}
	return differential.Pick(d, "n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4", "n5", "n6", gone)
}

// claimName returns the name of the nth claim. Every other one is like those of a StatefulSet when it
// matters.
func (d *provisioningDice) claimName(n int) string {
	if d.topology && n%2 == 1 {
		return fmt.Sprintf("c%d-web-%d", n, n/2)
	}
	return fmt.Sprint("c", n)
}

// allowed draws the topologies that a class allows; nil means all.
func (d *provisioningDice) allowed() []corev1.TopologySelectorTerm {
	in := func(key string, values ...string) corev1.TopologySelectorLabelRequirement {
		return corev1.TopologySelectorLabelRequirement{Key: key, Values: values}
	}
	term := func(all ...corev1.TopologySelectorLabelRequirement) corev1.TopologySelectorTerm {
		return corev1.TopologySelectorTerm{MatchLabelExpressions: all}
	}
	if !d.topology {
		return nil
	}
	return differential.Pick(d, nil, nil, []corev1.TopologySelectorTerm{term(in(upstream.Zone, "b", "a"))},
		[]corev1.TopologySelectorTerm{term(in(upstream.Zone, "a"), in(rack, "r2", "r1"))},
		[]corev1.TopologySelectorTerm{term(in(upstream.Zone, "c")), term(in(upstream.Zone, "a"), in(rack, "r1"))},
		[]corev1.TopologySelectorTerm{term(in(upstream.Zone, "d"))})
}

// preferred returns where a driver has its volumes: each in the most preferred topology of the first request, and in
// two
// for the class gold.
func preferred() func(r *csipb.CreateVolumeRequest) []*csipb.Topology {
	segments := map[string][]*csipb.Topology{}
	return func(r *csipb.CreateVolumeRequest) []*csipb.Topology {
		if segments[r.GetName()] == nil {
			preferred, places := r.GetAccessibilityRequirements().GetPreferred(), 1
			if r.GetParameters()["tier"] == "gold" {
				places = 2
			}
			segments[r.GetName()] = preferred[:min(places, len(preferred))]
		}
		return segments[r.GetName()]
	}
}

// unselected says whether a line is about a claim without a volume, whose selected node, which is allowed, only one
// side has.
func unselected(line string, with, without []string, which string) bool {
	node := regexp.MustCompile(` ?volume\.kubernetes\.io/selected-node=` + which + `\b`)
	name := claimIn(line)
	for _, l := range with {
		if strings.HasPrefix(l, "claim "+name+" Pending ") && node.MatchString(l) &&
			slices.Contains(without, node.ReplaceAllString(l, "")) {
			return true
		}
	}
	return false
}
