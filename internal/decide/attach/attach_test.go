package attach

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const driver = "d.example.com"

func pv(name string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: append(modes, corev1.ReadWriteOnce),
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h-" + name},
		},
	}}
}

func withSecret() *corev1.PersistentVolume {
	v := pv("pv")
	v.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "s"}
	return v
}

func pod(name string) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func node(change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	for _, f := range change {
		f(n)
	}
	return n
}

func uses(name string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.VolumesInUse = append(n.Status.VolumesInUse, corev1.UniqueVolumeName(volume.UniqueName(driver, "h-"+name)))
	}
}

func knows(name string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.VolumesAttached = append(n.Status.VolumesAttached,
			corev1.AttachedVolume{Name: corev1.UniqueVolumeName(volume.UniqueName(driver, "h-"+name))})
	}
}
func down(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
func outOf(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}
}

func outOfSoftly(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoSchedule}}
}

func attachment(volumeName, nodeName string, change ...func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: NameOf(driver, "h-"+volumeName, nodeName)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: nodeName, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volumeName},
		},
	}
	for _, f := range change {
		f(a)
	}
	return a
}

func attached(a *storagev1.VolumeAttachment) { a.Status.Attached = true }
func failing(a *storagev1.VolumeAttachment) {
	a.Status.AttachError = &storagev1.VolumeError{Message: "Internal: no"}
}
func renamed(a *storagev1.VolumeAttachment) { a.Name = "by-hand" }
func going(a *storagev1.VolumeAttachment)   { a.DeletionTimestamp = &metav1.Time{} }
func held(a *storagev1.VolumeAttachment)    { a.Finalizers = []string{volume.AttacherFinalizer(driver)} }

func recorded(a *storagev1.VolumeAttachment) {
	a.Annotations = map[string]string{volume.AnnNodeID: "id1", volume.AnnDetach: `{"handle":"h-pv"}`}
}

// inTree is a volume of a plugin of Kubernetes' own whose place the driver has taken.
func inTree(source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	v := pv("pv")
	v.Annotations, v.Spec.PersistentVolumeSource = map[string]string{volume.AnnMigratedTo: driver}, source
	return v
}

// edited is a record of another volume than the attachment's name is made of.
func edited(a *storagev1.VolumeAttachment) {
	a.Annotations = map[string]string{volume.AnnNodeID: "id1", volume.AnnDetach: `{"handle":"h-edited"}`}
}

func named(a *storagev1.VolumeAttachment) {
	a.Annotations = map[string]string{volume.AnnNodeID: "id1"}
}

func torn(a *storagev1.VolumeAttachment) {
	a.Annotations = map[string]string{volume.AnnDetach: `{"handle":`}
}

func hollow(a *storagev1.VolumeAttachment) {
	a.Annotations = map[string]string{volume.AnnDetach: `{}`}
}

// inline has an attachment say itself what its volume is.
func inline(a *storagev1.VolumeAttachment) {
	a.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &pv("inline").Spec}
}

func inlinePath(a *storagev1.VolumeAttachment) {
	a.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{}}
}

func attachments(all ...*storagev1.VolumeAttachment) []*storagev1.VolumeAttachment { return all }

func whyText(b volume.Because) string {
	return fmt.Sprintf("%s: %s -> %s", b.Reason, b.Message, b.Next)
}

// attachmentCase is one attachment, and what the decision must argue about it.
type attachmentCase struct {
	argues string
	facts  Facts
}

// lostCases are attachments that were lost with the node that serves their volume.
func lostCases() []attachmentCase {
	lost := func(on string, change ...func(*storagev1.VolumeAttachment)) Facts {
		f := Facts{Attachment: attachment("pv", "n1", append(change, held)...), Volume: pv("pv")}
		f.Attachment.Annotations = map[string]string{volume.AnnLostWith: "n1"}
		f.Volume.Annotations = map[string]string{volume.AnnProvisionedOn: on}
		f.Lost = IsLost(f)
		return f
	}
	return []attachmentCase{
		{"an attachment that was lost with node and volume stays while it is wanted", lost("n1")},
		{"and is released without its driver when it goes", lost("n1", going)},
		{"one of a volume that another node serves is its driver's", lost("n2", going)},
	}
}

// calls are attachments whose driver is called, or may not be.
func calls() []attachmentCase {
	v, dying, foreign, path := pv("pv"), pv("pv"), pv("pv"), pv("pv")
	dying.DeletionTimestamp = &metav1.Time{}
	foreign.Spec.CSI.Driver, path.Spec.CSI = "other.example.com", nil
	return []attachmentCase{
		{"the driver is asked to attach, with what detach will need recorded", Facts{
			Attachment: attachment("pv", "n1"), Volume: v, NodeID: "id1", Reachable: true,
		}},
		{"what is attached is left alone", Facts{
			Attachment: attachment("pv", "n1", attached), Volume: v, NodeID: "id1", Reachable: true,
		}},
		{"a driver that is not here is waited for", Facts{Attachment: attachment("pv", "n1"), Volume: v, NodeID: "id1"}},
		{"a node without the driver is waited for", Facts{Attachment: attachment("pv", "n1"), Volume: v, Reachable: true}},
		{"a volume that is gone is not attached", Facts{Attachment: attachment("pv", "n1"), NodeID: "id1", Reachable: true}},
		{"nor one that is going", Facts{Attachment: attachment("pv", "n1"), Volume: dying, NodeID: "id1", Reachable: true}},
		{"detach uses the record, though volume and node are gone", Facts{
			Attachment: attachment("pv", "n1", attached, going, held, recorded), Reachable: true,
		}},
		{"an attachment of today's attacher has no record but a volume", Facts{
			Attachment: attachment("pv", "n1", attached, going, held), Volume: v, NodeID: "id1", Reachable: true,
		}},
		{
			"without both the driver was never called by us", Facts{
				Attachment: attachment("pv", "n1", going, held),
				Reachable:  true,
			},
		},
		{"a driver with nothing to do is not called", Facts{
			Attachment: attachment("pv", "n1"), Volume: v, Reachable: true, NoControllerPublish: true,
		}},
		{"a driver is never given another one's volume", Facts{
			Attachment: attachment("pv", "n1"), Volume: foreign, NodeID: "id1", Reachable: true,
		}},
		{"what is not a CSI volume is not attached", Facts{
			Attachment: attachment("pv", "n1"), Volume: path, NodeID: "id1", Reachable: true,
		}},
		{"today's attacher called the driver and the volume is gone: nobody knows what to detach", Facts{
			Attachment: attachment("pv", "n1", going, held, named), Reachable: true,
		}},
		{"attached, and nobody knows what", Facts{
			Attachment: attachment("pv", "n1", attached, going, held), NodeID: "id1", Reachable: true,
		}},
		{"a record that cannot be read is not trusted", Facts{
			Attachment: attachment("pv", "n1", going, held, torn), NodeID: "id1", Reachable: true,
		}},
		{"nor one of nothing", Facts{
			Attachment: attachment("pv", "n1", going, held, hollow), NodeID: "id1",
			Reachable: true,
		}},
		{"another one's volume is not detached either", Facts{
			Attachment: attachment("pv", "n1", going, held, named), Volume: foreign, Reachable: true,
		}},
		{"to a driver no node means every node: it is never asked that", Facts{
			Attachment: attachment("pv", "n1", attached, going, held), Volume: v, Reachable: true,
		}},
		{"a driver that lost the ability to attach lets go", Facts{
			Attachment: attachment("pv", "n1", attached, going, held), Volume: v, Reachable: true, NoControllerPublish: true,
		}},
	}
}

// records are attachments whose record, finalizer, node or volume is not what it was.
func records() []attachmentCase {
	v, path, wordy, full, anew := pv("pv"), pv("pv"), pv("pv"), pv("pv"), pv("pv")
	path.Spec.CSI, anew.Spec.CSI.VolumeHandle = nil, "h-anew"
	wordy.Spec.CSI.VolumeAttributes = map[string]string{"a": strings.Repeat("x", maxAttributes)}
	full.Spec.CSI.VolumeAttributes = map[string]string{"a": strings.Repeat("x", maxAttributes-1)}
	nothing := attachment("", "n1")
	nothing.Spec.Source = storagev1.VolumeAttachmentSource{}
	return []attachmentCase{
		{"the driver does not know that it is attached", Facts{
			Attachment: attachment("pv", "n1", attached, held, recorded), Volume: v, NodeID: "id1", Reachable: true, Again: true,
		}},
		{"the node has another name since: it may be attached under the old one", Facts{
			Attachment: attachment("pv", "n1", held, recorded), Volume: v, NodeID: "id2", Reachable: true,
		}},
		{"a name that somebody suggests was not used yet", Facts{
			Attachment: attachment("pv", "n1", named), Volume: v, NodeID: "id2", Reachable: true,
		}},
		{"more attributes than a driver takes", Facts{
			Attachment: attachment("pv", "n1"), Volume: wordy, NodeID: "id1", Reachable: true,
		}},
		{"as many as one takes", Facts{Attachment: attachment("pv", "n1"), Volume: full, NodeID: "id1", Reachable: true}},
		{"the Secret of the call is recorded for the next one", Facts{
			Attachment: attachment("pv", "n1"), Volume: withSecret(), NodeID: "id1", Reachable: true,
		}},
		{"what is attached, kept and recorded is left alone", Facts{
			Attachment: attachment("pv", "n1", attached, held, recorded), Volume: v, NodeID: "id1", Reachable: true,
		}},
		{"a record that cannot be read is one: the finalizer has been taken", Facts{
			Attachment: attachment("pv", "n1", attached, torn), Volume: v, NodeID: "id1", Reachable: true,
		}},
		{"what is not a CSI volume any more does not say what to detach", Facts{
			Attachment: attachment("pv", "n1", going, held, named), Volume: path, Reachable: true,
		}},
		{"of a volume that a driver has taken over from Kubernetes the attachment's name proves the handle", Facts{
			Attachment: attachment("pv", "n1", going, held, named), Volume: inTree(corev1.PersistentVolumeSource{
				AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://zone/h-pv"},
			}), Reachable: true,
		}},
		{"and no other", Facts{
			Attachment: attachment("other", "n1", going, held, named), Volume: inTree(corev1.PersistentVolumeSource{
				Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "h-pv"},
			}), Reachable: true,
		}},
		{"an attachment of nothing is not attached", Facts{Attachment: nothing, NodeID: "id1", Reachable: true}},
		{"a volume may be described in the attachment itself", Facts{
			Attachment: attachment("", "n1", inline), Volume: SourceOf(attachment("", "n1", inline), nil), NodeID: "id1",
			Reachable: true,
		}},
		{"if it is a CSI volume", Facts{
			Attachment: attachment("", "n1", inlinePath), Volume: SourceOf(attachment("", "n1", inlinePath), nil),
			NodeID: "id1", Reachable: true,
		}},
		{"the object was made again for another volume, and the driver may have attached the first", Facts{
			Attachment: attachment("pv", "n1", held, recorded), Volume: anew, NodeID: "id1", Reachable: true,
		}},
		{"the object was made again for another volume, as the attachment's name shows, before anything was attached", Facts{
			Attachment: attachment("pv", "n1"), Volume: anew, NodeID: "id1", Reachable: true,
		}},
		{"or after another attacher has attached the first: the other one is not detached in its place", Facts{
			Attachment: attachment("pv", "n1", attached, going, held, named), Volume: anew, NodeID: "id1", Reachable: true,
		}},
		{"but a name of another form proves nothing", Facts{
			Attachment: attachment("pv", "n1", attached, going, held, named, renamed), Volume: anew, NodeID: "id1",
			Reachable: true,
		}},
		{"somebody has taken the finalizer of what is attached", Facts{
			Attachment: attachment("pv", "n1", attached, recorded), Volume: v, NodeID: "id1", Reachable: true,
		}},
		{"which a driver that does not attach never had", Facts{
			Attachment: attachment("pv", "n1", attached, recorded), Volume: v, NodeID: "id1", Reachable: true,
			NoControllerPublish: true,
		}},
		{"one that was deleted without a detach is not taken from its node while that uses it", Facts{
			Attachment: attachment("pv", "n1", going, held, recorded), Volume: v, NodeID: "id1", Reachable: true, Mounted: true,
		}},
		{"without our finalizer it is not our turn", Facts{Attachment: attachment("pv", "n1", going), Reachable: true}},
	}
}

func TestAttachments(t *testing.T) {
	var out strings.Builder
	for _, c := range slices.Concat(calls(), records(), lostCases()) {
		p := Attachment(c.facts)
		step := map[Step]string{
			Nothing: "nothing", Mark: "mark", Attach: "attach", Detach: "detach", Release: "release", Refuse: "refuse",
		}[p.Step]
		fmt.Fprintf(&out, "# %s\n%s node-id=%q left=%q\n%s%s\n\n", c.argues, step, p.NodeID, p.Left,
			golden.Change(t, Record{}, p.Record), whyText(p.Because))
	}
	out.WriteString(volumesText(t))
	for _, detaching := range []bool{false, true} {
		why := Failed(attachment("pv", "n1"), detaching, volume.Answer{Code: "Internal", Text: "Internal: no"})
		fmt.Fprintf(&out, "# a driver that fails is quoted\n%s\n\n", whyText(why))
	}
	golden.Equal(t, "testdata/attachments.txt", out.String())
}

// volumesText is what becomes of volume objects that are attached or not.
func volumesText(t *testing.T) string {
	t.Helper()
	v, dying, path := pv("pv"), pv("pv"), pv("pv")
	dying.DeletionTimestamp, path.Spec.CSI = &metav1.Time{}, nil
	dyingHeld, kept, provisioned := dying.DeepCopy(), pv("pv"), dying.DeepCopy()
	dyingHeld.Finalizers = []string{"example.com/first", volume.AttacherFinalizer(driver), "example.com/last"}
	kept.Finalizers = []string{volume.AttacherFinalizer(driver)}
	provisioned.Finalizers = []string{volume.AttacherFinalizer(driver), volume.FinalizerProvisioner}
	taken := inTree(corev1.PersistentVolumeSource{})
	taken.DeletionTimestamp, taken.Finalizers = dyingHeld.DeletionTimestamp, dyingHeld.Finalizers
	var out strings.Builder
	for _, c := range []struct {
		argues   string
		volume   *corev1.PersistentVolume
		attached bool
	}{
		{"a volume that is attached is kept", v, true},
		{"one that is going is not taken hold of again", dying, true},
		{"which is done once", kept, true},
		{"one that is not attached is left alone", v, false},
		{"also when it is kept: it may be attached again", kept, false},
		{"and keeps hold of what is attached", dyingHeld, true},
		{"one that is going and was not kept needs no write", dying, false},
		{"one that is going is let go when it is no longer attached", dyingHeld, false},
		{"but by the provisioner, which takes this with its own", provisioned, false},
		{"what is not a CSI volume is not touched", path, true},
		{"unless the driver has taken it over", taken, false},
	} {
		got, why := Volume(c.volume, c.attached)
		if got == nil {
			got = c.volume
		}
		fmt.Fprintf(&out, "# %s\n%s%s\n\n", c.argues, golden.Change(t, c.volume, got), whyText(why))
	}
	return out.String()
}

// TestMigratedHandle: a handle counts if the attachment's name is made of it.
func TestMigratedHandle(t *testing.T) {
	disk := func(zones string) *corev1.PersistentVolume {
		v := inTree(corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}})
		v.Labels = map[string]string{corev1.LabelTopologyZone: zones}
		return v
	}
	for handle, v := range map[string]*corev1.PersistentVolume{
		"projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk": disk(""),
		"projects/UNSPECIFIED/zones/us-east1-b/disks/disk":  disk("us-east1-b"),
		"projects/UNSPECIFIED/regions/us-east1/disks/disk":  disk("us-east1-b__us-east1-c"),
		"/subscriptions/s/providers/Microsoft.Compute/disks/d": inTree(corev1.PersistentVolumeSource{
			AzureDisk: &corev1.AzureDiskVolumeSource{DataDiskURI: "/subscriptions/s/providers/Microsoft.Compute/disks/d"},
		}),
	} {
		a := attachment("pv", "n1")
		if got := migratedHandle(a, v); got != "" {
			t.Errorf("%s: the name is not made of %s", handle, got)
		}
		a.Name = NameOf(driver, handle, "n1")
		if got := migratedHandle(a, v); got != handle {
			t.Errorf("got %q, want %q", got, handle)
		}
	}
}

// TestRecorded: what a detach needs is added to what is there, once; whatever of
// it is missing or another is written again.
func TestRecorded(t *testing.T) {
	p := Plan{NodeID: "id1", Record: Record{Handle: "h", Secret: &corev1.SecretReference{Name: "s", Namespace: "n"}}}
	bare := attachment("pv", "n1", func(a *storagev1.VolumeAttachment) {
		a.Finalizers, a.Annotations = []string{"example.com/keep"}, map[string]string{"example.com/note": "x"}
	})
	want := bare.DeepCopy()
	want.Finalizers = append(want.Finalizers, volume.AttacherFinalizer(driver))
	want.Annotations[volume.AnnNodeID], want.Annotations[volume.AnnDetach] = "id1",
		`{"handle":"h","secret":{"name":"s","namespace":"n"}}`
	for _, lacks := range []func(*storagev1.VolumeAttachment){
		func(a *storagev1.VolumeAttachment) { *a = *bare.DeepCopy() },
		func(a *storagev1.VolumeAttachment) { a.Finalizers = a.Finalizers[:1] },
		func(a *storagev1.VolumeAttachment) { a.Annotations[volume.AnnNodeID] = "id2" },
		func(a *storagev1.VolumeAttachment) { a.Annotations[volume.AnnDetach] = `{"handle":"h"}` },
	} {
		from := want.DeepCopy()
		lacks(from)
		got, changed := Recorded(from, p)
		if diff := cmp.Diff(want, got); diff != "" || !changed {
			t.Errorf("changed=%v (-want +got):\n%s", changed, diff)
		}
	}
	if again, changed := Recorded(want, p); again != want || changed {
		t.Error("recording twice is a change")
	}
	if got, err := RecordOf(want); err != nil || !cmp.Equal(&p.Record, got) {
		t.Errorf("read again: %+v, %v", got, err)
	}
	if left := WithoutFinalizer(want).Finalizers; !slices.Equal(left, bare.Finalizers) {
		t.Error("a released attachment has the finalizers", left)
	}
}

// TestLiving: only a node that is there, ready and in service is believed in what
// it says.
func TestLiving(t *testing.T) {
	for _, c := range []struct {
		argues string
		node   *corev1.Node
		want   bool
	}{
		{"ready", node(), true},
		{"gone", nil, false},
		{"not ready", node(down), false},
		{"out of service", node(outOf), false},
	} {
		if got := Trusted(c.node); got != c.want {
			t.Errorf("a node that is %s is living: %v", c.argues, got)
		}
	}
}

func TestNodeID(t *testing.T) {
	registered := &storagev1.CSINode{Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: "other", NodeID: "x"}, {Name: driver, NodeID: "new"}},
	}}
	old := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{volume.AnnLegacyNodeID: `{"` + driver + `":"old"}`}},
	}
	torn := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{volume.AnnLegacyNodeID: "{"}}}
	bare, said := attachment("pv", "n1"), attachment("pv", "n1", named)
	for _, c := range []struct {
		csi  *storagev1.CSINode
		a    *storagev1.VolumeAttachment
		node *corev1.Node
		want string
	}{
		{registered, said, old, "new"},
		{nil, said, old, "id1"},
		{&storagev1.CSINode{}, said, nil, "id1"},
		{&storagev1.CSINode{}, bare, old, "old"},
		{nil, bare, old, "old"},
		{nil, bare, torn, ""},
		{nil, bare, nil, ""},
		{nil, bare, &corev1.Node{}, ""},
	} {
		if got := NodeID(c.csi, c.a, c.node); got != c.want {
			t.Errorf("NodeID(%v, %v, %v) = %q, want %q", c.csi, c.a.Annotations, c.node, got, c.want)
		}
	}
}

// TestLost: only what went without having been marked as going was lost.
func TestLost(t *testing.T) {
	name := "pv"
	lost := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"external-attacher/d"}}}
	lost.Spec.Attacher, lost.Spec.Source.PersistentVolumeName = "d", &name
	released, early := lost.DeepCopy(), lost.DeepCopy()
	released.DeletionTimestamp = &metav1.Time{}
	early.Finalizers = nil
	bare := early.DeepCopy()
	recorded(bare)
	own := lost.DeepCopy()
	inline(own)
	if DeletedWithoutDetach(own) {
		t.Error("what no volume object names is not ours to lose")
	}
	for a, want := range map[*storagev1.VolumeAttachment]bool{lost: true, released: false, early: false, bare: true} {
		if DeletedWithoutDetach(a) != want {
			t.Errorf("%s: deleted without detach: %v", a, !want)
		}
	}
	if !LostFinalizer(lost, bare) || LostFinalizer(bare, bare) || LostFinalizer(lost, lost) ||
		LostFinalizer(lost, func() *storagev1.VolumeAttachment { going(early); return early }()) {
		t.Error("only what is not going can be bared")
	}
}
