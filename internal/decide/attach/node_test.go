package attach

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// nodeCase is what is known of node n1, and what is to be seen from it.
type nodeCase struct {
	argues string
	facts  NodeFacts
}

// disturbed is where somebody has changed things by hand.
func disturbed() []nodeCase {
	v, shared, anew := pv("pv"), pv("pv", corev1.ReadWriteMany), pv("pv")
	twin, dying := pv("twin"), pv("pv")
	anew.Spec.CSI.VolumeHandle, twin.Spec.CSI.VolumeHandle, dying.DeletionTimestamp = "h-anew", "h-pv", &metav1.Time{}
	return []nodeCase{
		{"a volume object that was made again for another volume does not hide what it was", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Desired: []DesiredVolume{{Volume: anew, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", attached, held, recorded)),
			Volumes:     map[string]*corev1.PersistentVolume{"pv": anew},
		}},
		{"nor does it if another program's attacher has left no record: the name tells them apart", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Desired: []DesiredVolume{{Volume: anew, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", attached, held, named)),
			Volumes:     map[string]*corev1.PersistentVolume{"pv": anew},
		}},
		{"an attachment that can never be attached makes way for that of another object of the handle", NodeFacts{
			Node: node(uses("pv")), Desired: []DesiredVolume{{Volume: twin, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", failing, held, recorded)),
			Volumes:     map[string]*corev1.PersistentVolume{"pv": dying},
		}},
		{"also when the first object is gone", NodeFacts{
			Node: node(uses("pv")), Desired: []DesiredVolume{{Volume: twin, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", held, recorded)),
		}},
		{"not while the first object is there", NodeFacts{
			Node: node(uses("pv")), Desired: []DesiredVolume{{Volume: twin, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", held, recorded)),
			Volumes:     map[string]*corev1.PersistentVolume{"pv": v},
		}},
		{"nor once it was attached, when a Pod may have it mounted", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Desired: []DesiredVolume{{Volume: twin, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", attached, held, recorded)),
			Volumes:     map[string]*corev1.PersistentVolume{"pv": dying},
		}},
		{"or as long as the node is told that it was", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Desired: []DesiredVolume{{Volume: twin, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", held, recorded)),
			Volumes:     map[string]*corev1.PersistentVolume{"pv": dying},
		}},
		{"or while a Pod wants it by the first object", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: dying, Pod: pod("old")}, {Volume: twin, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", held, recorded)),
			Volumes:     map[string]*corev1.PersistentVolume{"pv": dying},
		}},
		{"or while a Pod has it mounted, however that came about", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: twin, Pod: isMountedFor(pod("web"))}},
			Attachments: attachments(attachment("pv", "n1", held, recorded)),
		}},
		{"or if others have made it", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: twin, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", recorded, renamed)),
		}},
		{"a record that somebody has edited is not believed", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: v, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", attached, held, edited)),
			Volumes:     map[string]*corev1.PersistentVolume{"pv": v},
		}},
		{"a volume that another node has mounted is not attached, whatever has become of its attachment there", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: v, Pod: pod("web"), UsedOn: "n2"}},
		}},
		{"the Pod of another node that uses it is named", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: v, Pod: pod("web"), UsedOn: "n2", Holder: "old"}},
		}},
		{"but for one for many nodes", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: shared, Pod: pod("web"), UsedOn: "n2"}},
		}},
	}
}

// several are nodes with more than one volume, or more than one attachment of
// one, and attachments that say little.
func several() []nodeCase {
	v, b, path := pv("pv"), pv("b"), pv("pv")
	path.Spec.CSI = nil
	both := map[string]*corev1.PersistentVolume{"pv": v, "b": b}
	desired, self := []DesiredVolume{{Volume: v, Pod: pod("web")}}, []DesiredVolume{{
		Volume: pv("inline"),
		Pod:    pod("web"),
	}}
	byHand, short, long := attachment("pv", "n1", attached, renamed), attachment("pv", "n1", attached),
		attachment("pv", "n1", attached)
	short.Name, long.Name = "csi-by-hand", "by-hand-"+long.Name[len("by-hand-"):]
	return []nodeCase{
		{"a node is told its volumes in one order", NodeFacts{
			Node: node(knows("b")), Desired: append(desired, DesiredVolume{Volume: b, Pod: pod("web")}),
			Attachments: attachments(attachment("pv", "n1", attached), attachment("b", "n1", attached)), Volumes: both,
		}},
		{"a volume that is attached twice is told once, to the node and to the Pod", NodeFacts{
			Node: node(), Desired: desired, Attachments: attachments(byHand, attachment("pv", "n1", attached)), Volumes: both,
		}},
		{"it is attached though another attachment of it is not", NodeFacts{
			Node: node(knows("pv")), Desired: desired, Attachments: attachments(byHand, attachment("pv", "n1")), Volumes: both,
		}},
		{"what is recorded tells of a volume whose object is not seen", NodeFacts{
			Node: node(knows("pv")), Desired: desired, Attachments: attachments(attachment("pv", "n1", attached, renamed,
				recorded)),
		}},
		{"what an attachment says itself of its volume is believed", NodeFacts{
			Node: node(knows("inline")), Desired: self, Attachments: attachments(attachment("pv", "n1", attached, inline)),
		}},
		{"a name that only begins like ours is somebody else's", NodeFacts{Node: node(), Attachments: attachments(short)}},
		{"and so is one that is only as long", NodeFacts{Node: node(), Attachments: attachments(long)}},
		{"a volume that nobody knows is detached from a node that uses nothing", NodeFacts{
			Node: node(), Attachments: attachments(attachment("pv", "n1", attached)),
		}},
		{"a volume that is not a CSI volume any more tells nothing", NodeFacts{
			Node: node(), Attachments: attachments(attachment("pv", "n1", attached)),
			Volumes: map[string]*corev1.PersistentVolume{"pv": path},
		}},
	}
}

// replaced are nodes at which a driver has registered with another id than a volume is attached under.
func replaced() []nodeCase {
	cases := []nodeCase{
		{"a new machine with the node's name: no Pod has the volume there, though the node says that it uses it", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Desired: []DesiredVolume{{Pod: without("web")}},
		}},
		{"the same machine by another id: a Pod has the volume, which stays", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Desired: []DesiredVolume{{Pod: without("web")}, {Pod: pod("has")}},
		}},
		{"a Pod that waits for another reason: the volume may be staged already", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Desired: []DesiredVolume{{Pod: without("web", func(p *corev1.Pod) {
				p.Status.Conditions[0].Reason = string(volume.ReasonFailedMount)
			})}},
		}},
		{"a Pod with two volumes may have this one", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Desired: []DesiredVolume{{Pod: without("web", two)}},
		}},
		{"a Pod that is being deleted may have it", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Desired: []DesiredVolume{{Pod: without("web", deleted)}},
		}},
		{"a node that does not answer says nothing about its Pods", NodeFacts{
			Node: node(knows("pv"), uses("pv"), down), Desired: []DesiredVolume{{Pod: without("web")}},
		}},
		{"a driver that is away has no id", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Desired: []DesiredVolume{{Pod: without("web")}},
			Registered: map[string]string{"x": "id2"},
		}},
		{"the id of always", NodeFacts{
			Node: node(knows("pv")), Desired: []DesiredVolume{{Pod: without("web")}},
			Registered: map[string]string{driver: "id1"},
		}},
		{"what others have attached is theirs to move", NodeFacts{
			Node: node(knows("pv")), Desired: []DesiredVolume{{Pod: without("web")}},
			Attachments: attachments(attachment("pv", "n1", attached, held, recorded, renamed)),
		}},
	}
	v := pv("pv")
	for i := range cases {
		f := &cases[i].facts
		for w := range f.Desired {
			f.Desired[w].Volume = v
		}
		if f.Attachments == nil {
			f.Attachments = attachments(attachment("pv", "n1", attached, held, recorded))
		}
		if f.Volumes = map[string]*corev1.PersistentVolume{"pv": v}; f.Registered == nil {
			f.Registered = map[string]string{driver: "id2"}
		}
	}
	return cases
}

// without is a Pod whose agent does not begin to use its volume, because that is attached under another id.
func without(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := pod(name)
	p.Status.Conditions = []corev1.PodCondition{{
		Type: volume.ConditionVolumesMounted, Status: corev1.ConditionFalse,
		Reason: string(volume.ReasonAttachedUnderOtherID),
	}}
	for _, f := range change {
		f(p)
	}
	return p
}

func two(p *corev1.Pod) {
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}
	p.Spec.Volumes = []corev1.Volume{{Name: "a", VolumeSource: claim}, {Name: "b", VolumeSource: claim}}
}

func deleted(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }

// limited are nodes whose driver takes so many volumes.
func limited() []nodeCase {
	desired := []DesiredVolume{{Volume: pv("pv"), Pod: pod("web")}}
	return []nodeCase{
		{"a node takes no more volumes than its driver says", NodeFacts{
			Node: node(), Desired: desired, Attachments: attachments(attachment("other", "n1", going)),
			Limits: map[string]int{driver: 1},
		}},
		{"what is planned counts as well", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: pv("a"), Pod: pod("web")}, {Volume: pv("b"), Pod: pod("web")}},
			Limits: map[string]int{driver: 1},
		}},
		{"a driver may have no limit", NodeFacts{
			Node: node(), Desired: desired, Attachments: attachments(attachment("other", "n1", going)),
			Limits: map[string]int{"x": 1},
		}},
	}
}

// patient are nodes where nothing is detached by force for a timeout.
func patient() []nodeCase {
	cases := []nodeCase{
		{"where force for a timeout is disabled, people hear what ends the wait", NodeFacts{Node: node(down, uses("pv"))}},
		{"a dead node that has unmounted it needs no force", NodeFacts{Node: node(down)}},
		{"one that is back is asked as ever", NodeFacts{Node: node(uses("pv"))}},
		{"people may call it out of service", NodeFacts{Node: node(down, outOf, uses("pv"))}},
		{"or gone", NodeFacts{}},
		{"as long as there is time nobody hears of that", NodeFacts{Node: node(down, uses("pv"))}},
	}
	for i := range cases {
		f := &cases[i].facts
		f.DisableForceDetachOnTimeout = true
		f.Attachments, f.Volumes = attachments(attachment("pv", "n1", attached)),
			map[string]*corev1.PersistentVolume{"pv": pv("pv")}
		f.Overdue = map[string]bool{NameOf(driver, "h-pv", "n1"): i < len(cases)-1}
	}
	return cases
}

// desiredByOnePod are what one Pod wants, and the volumes that there are.
func desiredByOnePod() ([]DesiredVolume, map[string]*corev1.PersistentVolume) {
	v := pv("pv")
	return []DesiredVolume{{Volume: v, Pod: pod("web")}}, map[string]*corev1.PersistentVolume{"pv": v}
}

// wanted are nodes with a Pod that wants a volume.
func wanted() []nodeCase {
	desired, known := desiredByOnePod()
	v, shared := desired[0].Volume, pv("pv", corev1.ReadWriteMany)
	elsewhere := attachments(attachment("pv", "n2", attached))
	return []nodeCase{
		{"a wanted volume is attached", NodeFacts{Node: node(), Desired: desired}},
		{"two Pods want it once", NodeFacts{Node: node(), Desired: append(desired, desired...)}},
		{"while the driver works nothing more is done", NodeFacts{
			Node: node(), Desired: desired, Attachments: attachments(attachment("pv", "n1")), Volumes: known,
		}},
		{"what is attached is published to the node", NodeFacts{
			Node: node(), Desired: desired, Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
		}},
		{"and only once", NodeFacts{
			Node: node(knows("pv")), Desired: desired, Attachments: attachments(attachment("pv", "n1", attached)),
			Volumes: known,
		}},
		{"a driver that needs no attaching gets none", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: v, Pod: pod("web"), Needless: true}},
		}},
		{"one writer at a time: the second Pod waits and hears for whom", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: v, Pod: pod("web"), Elsewhere: elsewhere, Holder: "old"}},
		}},
		{"it waits as well when nobody knows the Pod", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: v, Pod: pod("web"), Elsewhere: elsewhere}},
		}},
		{"a volume for many nodes may be on both", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: shared, Pod: pod("web"), Elsewhere: elsewhere}},
		}},
	}
}

// unwanted are nodes that have a volume that no Pod wants, and nodes that are in doubt.
func unwanted() []nodeCase {
	desired, known := desiredByOnePod()
	late := map[string]bool{NameOf(driver, "h-pv", "n1"): true}
	return []nodeCase{
		{"an unwanted volume is withdrawn from the node and detached", NodeFacts{
			Node: node(knows("pv")), Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
		}},
		{"not while the node uses it", NodeFacts{
			Node: node(knows("pv"), uses("pv")), Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
		}},
		{"a dead node is given time", NodeFacts{
			Node: node(down, uses("pv")), Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
		}},
		{"but not for ever", NodeFacts{
			Node: node(down, uses("pv")), Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
			Overdue: late,
		}},
		{"a healthy node is waited for however long it takes", NodeFacts{
			Node: node(uses("pv")), Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known, Overdue: late,
		}},
		{"a node that people call out of service is not waited for", NodeFacts{
			Node: node(outOf, uses("pv")), Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
		}},
		{"a node that is gone uses nothing", NodeFacts{
			Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
		}},
		{"but a Pod that is still said to be there may", NodeFacts{
			Desired: desired, Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
		}},
		{"nothing more is attached to it", NodeFacts{Desired: desired, Volumes: known}},
		{"a volume object that is gone does not hide what it was", NodeFacts{
			Node: node(uses("pv")), Attachments: attachments(attachment("pv", "n1", attached, recorded)),
		}},
		{"a volume that nobody knows is held while the node uses anything", NodeFacts{
			Node: node(uses("other")), Attachments: attachments(attachment("pv", "n1", attached)),
		}},
		{"the driver's error reaches the Pod", NodeFacts{
			Node: node(), Desired: desired, Attachments: attachments(attachment("pv", "n1", failing)), Volumes: known,
		}},
	}
}

// others are attachments that somebody else made, and what is under way.
func others() []nodeCase {
	desired, known := desiredByOnePod()
	v, late := desired[0].Volume, map[string]bool{NameOf(driver, "h-pv", "n1"): true}
	return []nodeCase{
		{"an attachment may have any name", NodeFacts{
			Node: node(), Desired: desired, Attachments: attachments(attachment("pv", "n1", attached, renamed)), Volumes: known,
		}},
		{"what others have attached is theirs to detach", NodeFacts{
			Node: node(), Attachments: attachments(attachment("pv", "n1", attached, renamed)), Volumes: known,
		}},
		{"also when its volume is gone", NodeFacts{
			Node: node(), Attachments: attachments(attachment("pv", "n1", attached, renamed, recorded)),
		}},
		{"and a Pod hears whom it waits for", NodeFacts{Node: node(), Desired: []DesiredVolume{
			{Volume: v, Pod: pod("web"), Elsewhere: attachments(attachment("pv", "n2", attached, renamed))},
		}}},
		{"what was asked to go is not told to the node again, though a Pod wants it", NodeFacts{
			Node: node(), Desired: desired, Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
			Deleting: late,
		}},
		{"a node that hears of one volume while another one is on its way may hear of both at once", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: v, Pod: pod("web")}, {Volume: pv("b"), Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", attached), attachment("b", "n1")),
			Volumes:     map[string]*corev1.PersistentVolume{"pv": v, "b": pv("b")},
		}},
		{"an attachment on its way is not made again, and counts", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: v, Pod: pod("web")}, {Volume: pv("b"), Pod: pod("web")}},
			Creating: map[string]string{NameOf(driver, "h-pv", "n1"): driver},
			Limits:   map[string]int{driver: 1},
		}},
	}
}

// special are volumes, drivers and nodes of special kinds.
func special() []nodeCase {
	desired, known := desiredByOnePod()
	v, modeless, twin := desired[0].Volume, pv("pv"), pv("pv")
	modeless.Spec.AccessModes, twin.Name = nil, "twin"
	dying, single, read := pv("pv"), pv("pv"), pv("pv")
	dying.DeletionTimestamp, single.Spec.AccessModes = &metav1.Time{},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	read.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	elsewhere := attachments(attachment("pv", "n2", attached))
	return []nodeCase{
		{"an attacher that is near has the record made with the attachment", NodeFacts{
			Node: node(), Desired: desired, NodeIDs: map[string]string{driver: "id1"},
		}},
		{"not for a volume that needs a Secret, which may be missing", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: withSecret(), Pod: pod("web")}},
			NodeIDs: map[string]string{driver: "id1"},
		}},
		{"not for a volume that is going, which is not attached", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: dying, Pod: pod("web")}}, NodeIDs: map[string]string{driver: "id1"},
		}},
		{"a driver that says meanwhile that it needs no attaching keeps what it has while it is wanted", NodeFacts{
			Node: node(knows("pv")), Desired: []DesiredVolume{{Volume: v, Pod: pod("web"), Needless: true}},
			Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
		}},
		{"people may call a node out of service with any effect", NodeFacts{
			Node: node(outOfSoftly, uses("pv")), Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
		}},
		{"an attachment of a volume without an object is somebody else's", NodeFacts{
			Node: node(), Attachments: attachments(attachment("pv", "n1", attached, inline)),
		}},
		{"a volume for one Pod is for one node", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: single, Pod: pod("web"), Elsewhere: elsewhere, Holder: "old"}},
		}},
		{"readers may be on many nodes", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: read, Pod: pod("web"), Elsewhere: elsewhere}},
		}},
		{"a volume with no access modes may be on many nodes", NodeFacts{
			Node: node(), Desired: []DesiredVolume{{Volume: modeless, Pod: pod("web"), Elsewhere: elsewhere}},
		}},
		{"two volume objects of one volume need it while one of them is wanted", NodeFacts{
			Node: node(knows("pv")), Desired: []DesiredVolume{{Volume: twin, Pod: pod("web")}},
			Attachments: attachments(attachment("pv", "n1", attached)), Volumes: known,
		}},
		{"a node that is gone and has nothing", NodeFacts{}},
		{"what is being detached is the attacher's turn", NodeFacts{
			Node: node(), Desired: desired, Attachments: attachments(attachment("pv", "n1", attached, going)), Volumes: known,
		}},
	}
}

func TestNodes(t *testing.T) {
	var out strings.Builder
	all := slices.Concat(wanted(), unwanted(), others(), special(), limited(), patient(), disturbed(), several(),
		replaced())
	for _, c := range all {
		c.facts.Name = "n1"
		fmt.Fprintf(&out, "# %s\n%s\n", c.argues, nodeText(t, c.facts.Node, Node(c.facts)))
	}
	golden.Equal(t, "testdata/nodes.txt", out.String())
}

func nodeText(t *testing.T, n *corev1.Node, p NodePlan) string {
	t.Helper()
	var b strings.Builder
	if p.Publish {
		fmt.Fprintf(&b, "publish %v more=%v\n", p.Attached, p.More)
	}
	for _, d := range p.Detach {
		more := map[bool]string{true: " stuck"}[d.Stuck]
		if d.Unknown != "" {
			more += " unless it exists: " + d.Unknown
		}
		fmt.Fprintf(&b, "detach %s unique=%q in-use=%v force=%v%s %s\n", sourceOf(d.Attachment), d.Unique, InUse(n, d.Unique),
			d.Force, more, whyText(d.Because))
	}
	for _, a := range p.Attach {
		fmt.Fprintf(&b, "attach volume %s\n%s", a.Volume.Name, golden.Change(t, nil, a.Attachment))
	}
	for _, n := range p.Notices {
		fmt.Fprintf(&b, "tell %s of %s warn=%v %s, %s\n", n.Pod.Name, n.Volume, n.Warn, n.Event().Reason, whyText(n.Because))
	}
	fmt.Fprintln(&b, whyText(p.Because))
	return b.String()
}
