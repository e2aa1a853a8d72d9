package attach

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestConditions: what is told of a volume at a node and of an attachment, in the
// words of what is decided about them.
func TestConditions(t *testing.T) {
	var out strings.Builder
	tell := func(argues string, c volume.Condition) {
		fmt.Fprintf(&out, "# %s\n%s stuck=%v\n\n", argues, whyText(c.Because), c.Stuck)
	}
	v, other := pv("pv"), pv("other")
	desired := []DesiredVolume{{Volume: other, Pod: pod("first")}, {Volume: v, Pod: pod("web")}}
	elsewhere := []DesiredVolume{{
		Volume: v, Pod: pod("web"), Elsewhere: attachments(attachment("pv", "n2")),
		Holder: "old",
	}}
	tell("a volume that is about to be attached", Node(NodeFacts{Name: "n1", Node: node(), Desired: desired}).Wanted(v,
		"n1"))
	tell("one that another node has", Node(NodeFacts{Name: "n1", Node: node(), Desired: elsewhere}).Wanted(v, "n1"))
	tell("one too many",
		Node(NodeFacts{Name: "n1", Node: node(), Desired: desired, Limits: map[string]int{driver: 1}}).Wanted(v, "n1"))
	tell("one on a node that is gone", Node(NodeFacts{Name: "n1", Desired: desired}).Wanted(v, "n1"))
	tell("one whose attachment is being made", Node(NodeFacts{
		Name: "n1", Node: node(), Desired: desired[1:], Creating: map[string]string{NameOf(driver, "h-pv", "n1"): driver},
	}).Wanted(v, "n1"))
	for _, c := range []struct {
		argues  string
		node    *corev1.Node
		desired []DesiredVolume
		a       *storagev1.VolumeAttachment
		late    bool
	}{
		{"an attachment that nobody wants", node(), nil, attachment("pv", "n1", attached), false},
		{"one that its node still uses", node(uses("pv")), nil, attachment("pv", "n1", attached), false},
		{"one whose node is dead, for long", node(down, uses("pv")), nil, attachment("pv", "n1", attached), true},
		{"one that somebody else has made", node(), nil, attachment("pv", "n1", attached, renamed), false},
		{"one that somebody else has made, and that is not attached", node(), nil, attachment("pv", "n1", renamed), false},
		{
			"one that somebody else has made, being deleted", node(), nil, attachment("pv", "n1", attached, renamed, going),
			false,
		},
		{"one that is being deleted", node(), nil, attachment("pv", "n1", attached, going), false},
		{"one that is wanted", node(), desired[1:], attachment("pv", "n1", attached), false},
	} {
		p := Node(NodeFacts{
			Name: "n1", Node: c.node, Desired: c.desired,
			Attachments: attachments(attachment("b", "n1", renamed), c.a), DisableForceDetachOnTimeout: true,
			Volumes: map[string]*corev1.PersistentVolume{"pv": v}, Overdue: map[string]bool{c.a.Name: c.late},
		})
		if got, ok := p.Unwanted(c.a); ok {
			tell(c.argues, got)
		} else {
			fmt.Fprintf(&out, "# %s\nnothing\n\n", c.argues)
		}
	}
	failed := func(a *storagev1.VolumeAttachment) {
		failing(a)
		a.Status.DetachError = &storagev1.VolumeError{Message: "NotFound: no such node"}
	}
	for _, c := range []struct {
		argues string
		facts  Facts
	}{
		{"the driver attaches", Facts{Attachment: attachment("pv", "n1"), Volume: v, NodeID: "id1", Reachable: true}},
		{"it has failed", Facts{Attachment: attachment("pv", "n1", failed), Volume: v, NodeID: "id1", Reachable: true}},
		{"it has failed, and attached since", Facts{
			Attachment: attachment("pv", "n1", failed, attached), Volume: v, NodeID: "id1", Reachable: true,
		}},
		{"it detaches", Facts{Attachment: attachment("pv", "n1", attached, going, held, recorded), Reachable: true}},
		{"it has failed to", Facts{
			Attachment: attachment("pv", "n1", attached, going, held, recorded, failed),
			Reachable:  true,
		}},
		{"it is not asked", Facts{Attachment: attachment("pv", "n1", failed), Volume: v, Reachable: true}},
		{"somebody else holds it", Facts{Attachment: attachment("pv", "n1", going, foreign), Volume: v, Reachable: true}},
		{"it has no holder", Facts{Attachment: attachment("pv", "n1", going), Volume: v, Reachable: true}},
	} {
		tell(c.argues, ConditionOf(c.facts))
	}
	golden.Equal(t, "testdata/conditions.txt", out.String())
}

// foreign is held by a stranger.
func foreign(a *storagev1.VolumeAttachment) { a.Finalizers = []string{"example.com/keep"} }

// TestNames: an attachment is named after its volume, as far as that is known.
func TestNames(t *testing.T) {
	for want, a := range map[string]*storagev1.VolumeAttachment{
		"volume pv": attachment("pv", "n1"), "volume h-inline": attachment("x", "n1", inline),
		"a volume": {ObjectMeta: metav1.ObjectMeta{Name: "a"}},
	} {
		if got := Name(a); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
