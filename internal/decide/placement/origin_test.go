package placement

import (
	"fmt"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// restored are claims whose data are in a snapshot of a node; nodes in the zones have the same data.
func restored(claims []Claim, node string, zones ...string) []Claim {
	o := provision.Origin{Source: "snapshot nightly", Node: node, Only: true}
	for _, z := range zones {
		o.Affinity = topology.Affinity([]topology.Segment{{"zone": z}})
	}
	claims[0].Origin = o
	return claims
}

// copied are claims whose data are in a zone, from which a driver may copy them.
func copied(claims []Claim, zone string) []Claim {
	claims[0].Origin = provision.Origin{
		Source: "claim db", Affinity: topology.Affinity([]topology.Segment{{"zone": zone}}),
	}
	return claims
}

// refused are claims whose volumes the drivers of some nodes could not make.
func refused(claims []Claim, on string) []Claim {
	claims[0].Object.Annotations[volume.AnnRefusedOn] = on
	return claims
}

// refusedNodes are Pods with claims whose volumes could not be made on some nodes.
func refusedNodes() []podCase {
	two := twoNodes()
	return []podCase{
		{"a node that has refused is not chosen again while another one is possible", between(two,
			refused(lateClaim(""), "n2"))},
		{"though it says that it has much more room", between(two,
			refused(measured(lateClaim(""), map[string]string{"a": "6Gi", "b": "900Gi"}), "n2"))},
		{"it is, if no other one has room", between(two,
			refused(measured(lateClaim(""), map[string]string{"a": "5Gi", "b": "9Gi"}), "n2"))},
		{"of those that have refused, the one that did so first", between(two, refused(lateClaim(""), "n1,n2"))},
		{"a bound claim has been refused nothing", between(two, refused(everywhere(), "n2"))},
	}
}

// originPods are those whose claims get volumes that are made of data on some node.
func originPods() []podCase {
	two := twoNodes()
	return []podCase{
		{"data draw the Pod to where they are, though another node has fewer Pods", between(two,
			restored(lateClaim(""), "n1"))},
		{"nodes of one segment have the same data", between(two, restored(lateClaim(""), "n9", "b"))},
		{"data of which nobody knows the node are looked for anywhere", between(two, restored(lateClaim(""), ""))},
		{"a node that has gone has taken its data along", between(two, restored(lateClaim(""), "n9"))},
		{"data that the Pod's node selector excludes", Facts{
			Pod: pod(inZoneB), Nodes: two, Claims: restored(lateClaim(""), "n1"),
		}},
		{"data on a node that takes no Pods", between([]Node{node("n1", "a", 0, cordoned), node("n2", "b", 0)},
			restored(lateClaim(""), "n1"))},
		{"data on a node without room", between(two,
			measured(restored(lateClaim(""), "n1"), map[string]string{"a": "5Gi", "b": "9Gi"}))},
		{"a selected node is the provisioner's to give back", between(two, restored(lateClaim("n2"), "n1"))},
		{"the Pod has named the node with the data", Facts{
			Pod: pod(pinned), Nodes: []Node{node("n9", "a", 0)}, Claims: restored(lateClaim(""), "n9"),
		}},
		{"the Pod has named another one", Facts{
			Pod: pod(pinned), Nodes: []Node{node("n9", "a", 0)}, Claims: restored(lateClaim(""), "n1"),
		}},
		{"data in a place that no node has", between(two, restored(lateClaim(""), "", "z"))},
		{"data draw the Pod even if the driver may copy them", between(two, copied(lateClaim(""), "a"))},
		{"they do not keep it from another node", Facts{
			Pod: pod(inZoneB), Nodes: two, Claims: copied(lateClaim(""), "a"),
		}},
		{"nor if the driver could not make a volume beside them", between(two,
			refused(copied(lateClaim(""), "a"), "n1"))},
		{"a volume that is there needs no source any more", between(two, restored(bound("b"), "n1"))},
	}
}

// TestUnplaced: the node of a claim that no Pod places is one that has its data.
func TestUnplaced(t *testing.T) {
	var nodes []Node
	for i := range 3 {
		nodes = append(nodes, node(fmt.Sprint("n", i), fmt.Sprint("z", i), 0))
	}
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		volume.AnnControllers: volume.ControllersOnNodes,
	}}}
	var out strings.Builder
	for _, on := range []string{"n0", "n1", "n2", "n9", ""} {
		chosen := map[string]int{}
		var why volume.Because
		for i := range 9 {
			c := restored(lateClaim(""), on)[0]
			c.Driver = driver
			if on == "" {
				c.Object.Annotations[volume.AnnRefusedOn] = "n2,n0"
			}
			c.Object.ResourceVersion = fmt.Sprint(i)
			p := Unplaced(c, nodes)
			chosen[p.Node]++
			why = p.Because
		}
		argues := "of data on " + on
		if on == "" {
			argues = "that n2 and n0 have refused"
		}
		fmt.Fprintf(&out, "# nine claims %s\n%v\n%s: %s -> %s\n\n", argues, chosen, why.Reason, why.Message, why.Next)
	}
	golden.Equal(t, "testdata/unplaced.txt", out.String())
}
