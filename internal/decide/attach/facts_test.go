package attach

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// place is a small cluster: Pod web on node n1 uses claim data, which is bound to
// volume pv; n2 is empty.
type place struct {
	cluster.Lists
	Memory
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
	pod    *corev1.Pod
}

func newPlace() *place {
	s := &place{claim: claimOf("data", "pv"), volume: bound("pv", "data"), pod: user("web", "n1", "data")}
	s.Lists = cluster.Lists{
		Claims: []*corev1.PersistentVolumeClaim{s.claim}, Volumes: []*corev1.PersistentVolume{s.volume},
		Pods:  []*corev1.Pod{s.pod},
		Nodes: []*corev1.Node{node(), named2(node())},
	}
	return s
}

func claimOf(name, volume string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volume},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

func bound(name, claim string) *corev1.PersistentVolume {
	v := pv(name)
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: claim, UID: types.UID("uid-" + claim)}
	return v
}

func user(name, node, claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName: node, Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
}

func named2(n *corev1.Node) *corev1.Node {
	n.Name = "n2"
	return n
}

// attach adds attachments.
func (s *place) attach(all ...*storagev1.VolumeAttachment) {
	for _, a := range all {
		a.UID = types.UID("uid-" + a.Spec.NodeName)
		s.Attachments = append(s.Attachments, a)
	}
}

// brings has the Pod bring the claim itself, and own it if it says so.
func (s *place) brings(owned bool) {
	s.pod.Spec.Volumes[0].PersistentVolumeClaim, s.pod.Spec.Volumes[0].Ephemeral = nil, &corev1.EphemeralVolumeSource{}
	s.claim.Name = "web-data"
	s.volume.Spec.ClaimRef.Name = "web-data"
	if owned {
		s.claim.OwnerReferences = []metav1.OwnerReference{{UID: s.pod.UID, Controller: ptr.To(true)}}
	}
}

// likePV gives an attachment the name of one of pv's volume, which several objects may name.
func likePV(a *storagev1.VolumeAttachment) { a.Name = NameOf(driver, "h-pv", a.Spec.NodeName) }

// usedOn has n2 say that it uses the volume, which its Pods want.
func (s *place) usedOn(pods ...*corev1.Pod) {
	uses("pv")(s.Nodes[1])
	s.Pods = append(s.Pods, pods...)
}

func isMountedFor(p *corev1.Pod) *corev1.Pod {
	p.Status.Conditions = []corev1.PodCondition{
		{Type: "Other", Status: corev1.ConditionTrue}, {Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue},
	}
	return p
}

func ended(p *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	p.Status.Phase = phase
	return p
}

// drivers has the node's drivers say what they take.
func (s *place) drivers(name string, all ...storagev1.CSINodeDriver) {
	s.CSINodes = append(s.CSINodes, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: all},
	})
}

// TestFacts: what a decision about node n1 looks at, of all that there is.
func TestFacts(t *testing.T) {
	var out strings.Builder
	for _, c := range append(wishCases(), heldCases()...) {
		s := newPlace()
		c.change(s)
		fmt.Fprintf(&out, "# %s\n%s\n", c.argues, factsText(FactsOf(s.View(), "n1", s.Memory)))
	}
	golden.Equal(t, "testdata/facts.txt", out.String())
}

type placeCase struct {
	argues string
	change func(*place)
}

func wishCases() []placeCase {
	return []placeCase{
		{"a Pod wants the volume of its claim", func(*place) {}},
		{"also one that is being deleted, until its node has let go", func(s *place) {
			s.pod.DeletionTimestamp = &metav1.Time{}
		}},
		{"not one that has ended well", func(s *place) { ended(s.pod, corev1.PodSucceeded) }},
		{"or badly", func(s *place) { ended(s.pod, corev1.PodFailed) }},
		{"not one of another node", func(s *place) { s.pod.Spec.NodeName = "n2" }},
		{"a node that is gone", func(s *place) { s.Nodes = nil }},
		{"a claim that is not bound", func(s *place) { s.claim.Status.Phase = corev1.ClaimPending }},
		{"a claim that is not there", func(s *place) { s.Claims = nil }},
		{"a volume that is not there", func(s *place) { s.Volumes = nil }},
		{"a volume that is not a CSI volume", func(s *place) { s.volume.Spec.CSI = nil }},
		{"a volume that names nobody", func(s *place) { s.volume.Spec.ClaimRef = nil }},
		{"a volume that names another claim", func(s *place) { s.volume.Spec.ClaimRef.UID = "other" }},
		{"a claim that the Pod brings", func(s *place) { s.brings(true) }},
		{"one of its name that is not the Pod's", func(s *place) { s.brings(false) }},
		{"a volume in the Pod itself", func(s *place) {
			s.pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}
		}},
		{"a driver that needs no attaching", func(s *place) {
			s.Drivers = []*storagev1.CSIDriver{
				{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}},
			}
		}},
		{"one that does", func(s *place) {
			s.Drivers = []*storagev1.CSIDriver{
				{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(true)}},
			}
		}},
		{"one that does not say", func(s *place) {
			s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: driver}}}
		}},
		{"what the node's drivers take, and who is near", func(s *place) {
			s.drivers("n1", storagev1.CSINodeDriver{
				Name: driver, NodeID: "id1", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(int32(3))},
			},
				storagev1.CSINodeDriver{Name: "far", NodeID: "id2", Allocatable: &storagev1.VolumeNodeResources{}},
				storagev1.CSINodeDriver{Name: "b", NodeID: "id3"})
			s.drivers("n2", storagev1.CSINodeDriver{Name: "c", NodeID: "id4"})
			s.Near = func(d string) bool { return d != "far" }
		}},
		{"nobody is near to somebody else", func(s *place) {
			s.drivers("n1", storagev1.CSINodeDriver{Name: driver, NodeID: "id1"})
		}},
	}
}

func heldCases() []placeCase {
	return []placeCase{
		{"the attachments of the node, and what the process remembers", func(s *place) {
			s.attach(attachment("pv", "n1"), attachment("gone", "n1"), attachment("x", "n1", inline))
			s.Attachments[0].UID, s.Creating, s.DisableForceDetachOnTimeout = "going", map[string]string{"m": driver}, true
			s.Deleting = map[types.UID]bool{"going": true}
			s.Overdue = func(u types.UID) bool { return u == "going" }
		}},
		{"another node has the volume", func(s *place) { s.attach(attachment("pv", "n1"), attachment("pv", "n2")) }},
		{"for a Pod", func(s *place) {
			s.attach(attachment("pv", "n2"))
			s.Pods = append(s.Pods, user("a", "n2", "data"), ended(user("b", "n2", "data"), corev1.PodFailed),
				user("c", "n3", "data"))
		}},
		{"under another object of the same handle", func(s *place) {
			twin := bound("twin", "other")
			twin.Spec.CSI.VolumeHandle = "h-pv"
			s.Volumes = append(s.Volumes, twin)
			s.attach(attachment("twin", "n2", likePV))
			s.Pods = append(s.Pods, user("theirs", "n2", "other"))
		}},
		{"an attachment of the volume that the object was before does not count", func(s *place) {
			s.volume.Spec.CSI.VolumeHandle = "h-anew"
			s.attach(attachment("pv", "n2"))
		}},
		{"the same, for a Pod of another namespace, which is named with it", func(s *place) {
			twin := bound("twin", "other")
			twin.Spec.CSI.VolumeHandle, twin.Spec.ClaimRef.Namespace = "h-pv", "far"
			s.Volumes = append(s.Volumes, twin)
			uses("pv")(s.Nodes[1])
			theirs := isMountedFor(user("theirs", "n2", "other"))
			theirs.Namespace = "far"
			s.Pods = append(s.Pods, theirs)
		}},
		{"under one that names no claim", func(s *place) {
			twin := bound("twin", "other")
			twin.Spec.CSI.VolumeHandle, twin.Spec.ClaimRef = "h-pv", nil
			s.Volumes = append(s.Volumes, twin)
			s.attach(attachment("twin", "n2", likePV))
			uses("pv")(s.Nodes[1])
		}},
		{"that may be on several nodes", func(s *place) {
			s.volume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
			s.attach(attachment("pv", "n2"))
		}},
		{"another node says that it uses it: nobody believes that", func(s *place) { s.usedOn() }},
		{"its Pod has it mounted", func(s *place) { s.usedOn(isMountedFor(user("a", "n2", "data"))) }},
		{"its Pod has it mounted, and another one waits", func(s *place) {
			s.usedOn(user("a", "n2", "data"), isMountedFor(user("b", "n2", "data")))
		}},
		{"its Pod waits for it", func(s *place) { s.usedOn(user("a", "n2", "data")) }},
		{"its Pod is being deleted", func(s *place) {
			s.usedOn(user("a", "n2", "data"))
			s.Pods[1].DeletionTimestamp = &metav1.Time{}
		}},
		{"its Pod has ended", func(s *place) { s.usedOn(ended(user("a", "n2", "data"), corev1.PodSucceeded)) }},
		{"its Pod has ended, and another one waits", func(s *place) {
			s.usedOn(ended(user("a", "n2", "data"), corev1.PodSucceeded), user("b", "n2", "data"))
		}},
		{"it had the volume", func(s *place) {
			s.usedOn()
			s.Had = func(node, unique string) bool { return node == "n2" && unique == "kubernetes.io/csi/"+driver+"^h-pv" }
		}},
		{"it had the volume, and its Pod waits for it", func(s *place) {
			s.usedOn(user("a", "n2", "data"))
			s.Had = func(string, string) bool { return true }
		}},
		{"it is dead", func(s *place) {
			s.usedOn(isMountedFor(user("a", "n2", "data")))
			down(s.Nodes[1])
		}},
		{"the node itself uses it", func(s *place) {
			isMountedFor(s.pod)
			uses("pv")(s.Nodes[0])
		}},
	}
}

func factsText(f NodeFacts) string {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s there=%v\n", f.Name, f.Node != nil)
	for _, w := range f.Desired {
		fmt.Fprintf(&b, "pod %s wants %s needless=%v elsewhere=%v holder=%q used-on=%q\n", w.Pod.Name, w.Volume.Name,
			w.Needless, on(w.Elsewhere), w.Holder, w.UsedOn)
	}
	for _, a := range f.Attachments {
		fmt.Fprintf(&b, "attached %q going=%v overdue=%v\n", sourceOf(a), f.Deleting[a.Name], f.Overdue[a.Name])
	}
	if len(f.Volumes)+len(f.Creating)+len(f.Limits)+len(f.NodeIDs) > 0 || f.DisableForceDetachOnTimeout {
		fmt.Fprintf(&b, "volumes=%v making=%v limits=%v node-ids=%v forced=%v\n", slices.Sorted(maps.Keys(f.Volumes)),
			f.Creating, f.Limits, f.NodeIDs, !f.DisableForceDetachOnTimeout)
	}
	return b.String()
}

func on(all []*storagev1.VolumeAttachment) []string {
	var out []string
	for _, a := range all {
		out = append(out, sourceOf(a)+"@"+a.Spec.NodeName)
	}
	return out
}

// TestAway: a volume is away if another node has it, or is believed to use it.
func TestAway(t *testing.T) {
	for argues, c := range map[string]struct {
		change func(*place)
		want   bool
	}{
		"nobody has it":              {func(*place) {}, false},
		"this node has it":           {func(s *place) { s.attach(attachment("pv", "n1")) }, false},
		"another one has it":         {func(s *place) { s.attach(attachment("pv", "n2")) }, true},
		"another one uses it":        {func(s *place) { s.usedOn(isMountedFor(user("a", "n2", "data"))) }, true},
		"another one says so, alone": {func(s *place) { s.usedOn() }, false},
	} {
		s := newPlace()
		c.change(s)
		if got := InUseElsewhere(s.View(), s.volume, "n1", nil); got != c.want {
			t.Errorf("%s: away %v", argues, got)
		}
	}
}

// TestAttachmentFacts: what anybody can see of what an attachment is about.
func TestAttachmentFacts(t *testing.T) {
	s := newPlace()
	s.drivers("n1", storagev1.CSINodeDriver{Name: driver, NodeID: "id1"})
	s.Nodes[1].Annotations = map[string]string{volume.AnnLegacyNodeID: `{"` + driver + `":"old2"}`}
	for _, c := range []struct {
		a              *storagev1.VolumeAttachment
		handle, nodeID string
	}{
		{attachment("pv", "n1"), "h-pv", "id1"},
		{attachment("pv", "n2"), "h-pv", "old2"},
		{attachment("gone", "n3"), "", ""},
		{attachment("x", "n1", inline), "h-inline", "id1"},
	} {
		f, handle := AttachmentFacts(s.View(), c.a), ""
		if f.Volume != nil {
			handle = f.Volume.Spec.CSI.VolumeHandle
		}
		if f.Attachment != c.a || handle != c.handle || f.NodeID != c.nodeID || f.Reachable ||
			f.NoControllerPublish || f.Again {
			t.Errorf("%s: handle %q, node %q, %+v", c.a.Spec.NodeName, handle, f.NodeID, f)
		}
	}
}
