package why_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const driver = "d.example.com"

// attachmentName returns that of the attachment of v1 to n1.
func attachmentName() string { return attach.NameOf(driver, "h1", "n1") }

// scene is a small cluster: claim data of class fast, bound to volume v1, which
// is attached to node n1 and mounted there for pod web; node n2 is empty.
type scene struct {
	claim      *corev1.PersistentVolumeClaim
	volume     *corev1.PersistentVolume
	class      *storagev1.StorageClass
	driver     *storagev1.CSIDriver
	attachment *storagev1.VolumeAttachment
	pod        *corev1.Pod
	n1         *corev1.Node
	csi1       *storagev1.CSINode
	all        why.Objects
}

func newScene() *scene {
	s := &scene{
		claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "uid-data", Annotations: map[string]string{}},
		},
		volume: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v1", UID: "uid-v1"}},
		class: &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "uid-fast"}, Provisioner: driver,
			AllowVolumeExpansion: ptr.To(true),
		},
		driver:     &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}},
		attachment: attachment("n1"),
		pod:        pod("web", "n1"),
		n1:         node("n1"),
		csi1:       csiNode("n1"),
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	s.claim.Spec = corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To("fast"), VolumeName: "v1",
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: size},
	}
	s.claim.Status.Phase, s.claim.Status.Capacity, s.claim.Status.AccessModes = corev1.ClaimBound, size,
		s.claim.Spec.AccessModes
	s.claim.Annotations[volume.AnnBindCompleted] = "yes"
	s.volume.Spec = corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: s.claim.Spec.AccessModes, StorageClassName: "fast",
		ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "uid-data"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h1"},
		},
	}
	s.volume.Spec.PersistentVolumeReclaimPolicy, s.volume.Status.Phase = corev1.PersistentVolumeReclaimDelete,
		corev1.VolumeBound
	s.attachment.Status.Attached = true
	s.mounted(corev1.ConditionTrue, string(volume.ReasonMounted), "data=/m")
	s.all = why.Objects{Lists: cluster.Lists{
		Claims: []*corev1.PersistentVolumeClaim{s.claim}, Volumes: []*corev1.PersistentVolume{s.volume},
		Classes: []*storagev1.StorageClass{s.class}, Drivers: []*storagev1.CSIDriver{s.driver},
		Attachments: []*storagev1.VolumeAttachment{s.attachment}, Pods: []*corev1.Pod{s.pod},
		Nodes: []*corev1.Node{s.n1, node("n2")}, CSINodes: []*storagev1.CSINode{s.csi1, csiNode("n2")},
	}}
	return s
}

func node(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func csiNode(name string) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "id-" + name}},
	}}
}

// pod uses the claim.
func pod(name, node string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: node},
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	return p
}

func attachment(node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attach.NameOf(driver, "h1", node)},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: node, Attacher: driver, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("v1")},
		},
	}
}

func now() *metav1.Time { t := metav1.Now(); return &t }

// mounted sets what the node agent says of the Pod's volumes.
func (s *scene) mounted(status corev1.ConditionStatus, reason, message string) {
	s.pod.Status.Conditions = []corev1.PodCondition{
		{Type: volume.ConditionVolumesMounted, Status: status, Reason: reason, Message: message},
	}
}

// told has the node agent say why the Pod's volumes are not mounted.
func (s *scene) told(b volume.Because) {
	s.mounted(corev1.ConditionFalse, string(b.Reason), b.Message)
	s.pod.Annotations = map[string]string{volume.AnnNextMounted: b.Next}
}

// failed has the node agent say, or tell by an event, that a step did not work.
func (s *scene) failed(v mount.Verb, cause, next string) {
	b := mount.Failed(v, "n1", cause, next)
	if v == mount.Publish {
		s.told(b)
	}
	s.warn("uid-web", b.Reason, b.Message)
	s.next(b.Next)
}

// ill has the node agent say that a volume takes no writes any more.
func (s *scene) ill() {
	text, next := mount.State{ReadOnly: true}.Ails(driver, "n1")
	b := mount.Health("v1", "n1", text, next)
	s.mounted(corev1.ConditionTrue, "", "data=/x")
	s.pod.Status.Conditions = append(s.pod.Status.Conditions, corev1.PodCondition{
		Type: volume.ConditionVolumesHealthy, Status: corev1.ConditionFalse, Reason: string(b.Reason), Message: b.Message,
	})
	s.pod.Annotations = map[string]string{volume.AnnNextHealthy: b.Next}
	s.warn(s.pod.UID, b.Reason, b.Message)
}

// asked has the node agent have called the driver, which does not answer.
func (s *scene) asked() {
	s.told(mount.Begun(mount.Facts{Driver: driver, Volume: "v1", Node: "n1"}, mount.Publish))
}

// flexDrivers has the bridge of n1 say where its drivers stand, and the driver
// not register there.
func (s *scene) flexDrivers(text string) {
	s.n1.Annotations = map[string]string{volume.AnnDriverNotes: text, volume.AnnDriverDir: "/plugins"}
	s.csi1.Spec.Drivers = nil
}

// flexVolume has the volume be a FlexVolume.
func (s *scene) flexVolume() {
	s.volume.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: "example.com/d"}
}

// inline makes the Pod one that names a volume of the driver itself.
func (s *scene) inline() {
	s.pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		FlexVolume: &corev1.FlexVolumeSource{Driver: "example.com/d"}, CSI: &corev1.CSIVolumeSource{Driver: driver},
	}}}
	s.all.Claims, s.all.Volumes, s.all.Attachments = nil, nil, nil
}

// homeless has the Pod find no node.
func (s *scene) homeless(why string) {
	s.detached()
	s.pod.Spec.NodeName = ""
	s.pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: why},
	}
}

// controls has the control plane run on n2, where no driver has registered.
func (s *scene) controls() {
	s.all.Nodes[1].Annotations = map[string]string{volume.AnnControlPlane: "yes"}
	s.all.CSINodes = s.all.CSINodes[:1]
}

// use adds a second consumer of the claim.
func (s *scene) use(p *corev1.Pod) {
	s.all.Pods = append(s.all.Pods, p)
}

// unbound makes the claim one that nothing was done for, and that nobody uses.
func (s *scene) unbound() {
	s.pending()
	s.claim.Spec.VolumeName = ""
	s.all.Volumes, s.all.Attachments, s.all.Pods = nil, nil, nil
}

// pending makes the claim one that names a volume and is not bound yet.
func (s *scene) pending() {
	delete(s.claim.Annotations, volume.AnnBindCompleted)
	s.claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
}

// making has the provisioner have asked the driver for the claim's volume.
func (s *scene) making() {
	in := &provision.Intent{
		Driver: driver, Name: "pvc-uid-data", Claim: corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "uid-data"},
	}
	s.all.Begun = []*provision.Intent{in}
}

// late makes the claim of a class that waits for the first consumer.
func (s *scene) late() {
	s.unbound()
	s.class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
}

// short makes a Pod wait that found no node, because no node had room.
func (s *scene) short(message string) {
	s.late()
	p := pod("web", "")
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: message},
	}
	s.use(p)
}

// goes has the volume's object be deleted and kept by finalizers.
func (s *scene) goes(finalizers ...string) {
	s.volume.DeletionTimestamp, s.volume.Finalizers = now(), finalizers
}

// released takes the claim and its consumer away.
func (s *scene) released() {
	s.all.Claims, s.all.Pods, s.volume.Status.Phase = nil, nil, corev1.VolumeReleased
}

func (s *scene) detached() { s.all.Attachments = nil }

// attaching has the volume not be attached yet.
func (s *scene) attaching() { s.attachment.Status.Attached = false }

// detaching has the attachment be deleted.
func (s *scene) detaching() {
	s.attachment.DeletionTimestamp, s.attachment.Finalizers = now(), []string{volume.AttacherFinalizer(driver)}
}

// inlineAttachment has the attachment itself say what its volume is.
func (s *scene) inlineAttachment() {
	s.attachment.Spec.Source, s.attachment.Status.Attached =
		storagev1.VolumeAttachmentSource{InlineVolumeSpec: &s.volume.Spec}, false
}

func (s *scene) warn(uid types.UID, reason volume.Reason, message string) {
	s.all.Warnings = append(s.all.Warnings, &corev1.Event{
		InvolvedObject: corev1.ObjectReference{UID: uid}, Reason: string(reason), Message: message,
	})
}

// next adds to the newest warning who has to act.
func (s *scene) next(actor string) {
	s.all.Warnings[len(s.all.Warnings)-1].Annotations = map[string]string{volume.AnnNext: actor}
}

func (s *scene) wants(size string) {
	s.claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

func (s *scene) resizing(status corev1.ClaimResourceStatus) {
	s.wants("2Gi")
	s.claim.Status.AllocatedResources = s.claim.Spec.Resources.Requests
	s.claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
		corev1.ResourceStorage: status,
	}
}

// row is one scene and the object that is asked about.
type row struct {
	name   string
	ask    string
	change func(*scene)
}

func TestExplanations(t *testing.T) {
	for file, rows := range map[string][]row{
		"claims.txt": claimRows(), "attachments.txt": attachmentRows(), "consumers.txt": consumerRows(),
		"growth.txt": growthRows(), "volumes.txt": volumeRows(), "nodes.txt": nodeRows(), "absent.txt": absentRows(),
		"moves.txt": moveRows(),
		"kinds.txt": kindRows(),
	} {
		equal(t, file, written(t, rows, func(*scene) {}))
	}
}

// written explains each row, after a change that is the same for all.
func written(t *testing.T, rows []row, first func(*scene)) string {
	t.Helper()
	var b strings.Builder
	for _, r := range rows {
		s := newScene()
		first(s)
		r.change(s)
		chain, ok := ask(s.all, r.ask)
		if !ok {
			t.Fatalf("%s: there is no %s", r.name, r.ask)
		}
		b.WriteString("# " + r.name + "\n")
		if err := why.Render(&b, chain); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// ask explains an object; a1 stands for the long name of the attachment to n1.
func ask(o why.Objects, subject string) (why.Chain, bool) {
	c, ok := explain(o, strings.Replace(subject, "/a1", "/"+attachmentName(), 1))
	short := strings.NewReplacer(attachmentName(), "a1")
	c.Subject = short.Replace(c.Subject)
	for i := range c.Links {
		l := &c.Links[i]
		l.Subject, l.Because.Message = short.Replace(l.Subject), short.Replace(l.Because.Message)
	}
	return c, ok
}

func explain(o why.Objects, subject string) (why.Chain, bool) {
	switch kind, name, _ := strings.Cut(subject, "/"); kind {
	case "pvc":
		return why.Claim(o, "ns", name)
	case "pv":
		return why.Volume(o, name)
	case "pod":
		return why.Pod(o, "ns", name)
	case "volumeattachment":
		return why.Attachment(o, name)
	case "storageclass":
		return why.Class(o, name)
	case "csidriver":
		return why.Driver(o, name)
	case "csinode":
		return why.CSINode(o, name)
	case "namespace":
		return why.Namespace(o, name)
	case "volumesnapshot":
		return why.SnapshotOf(o, "ns", name)
	default:
		return why.Node(o, name)
	}
}

// equal compares the text with a file, and each line with the width of a
// terminal.
func equal(t *testing.T, file, got string) {
	t.Helper()
	golden.Equal(t, "testdata/"+file, got)
	for line := range strings.Lines(got) {
		if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 && !strings.HasPrefix(line, "# ") {
			t.Errorf("%s: line of more than 80 columns: %s", file, line)
		}
	}
}

// TestNextAfterEveryCode: who has to act after each code that a driver may answer,
// at each call that keeps somebody waiting.
func TestNextAfterEveryCode(t *testing.T) {
	var b strings.Builder
	for _, c := range []row{
		{"ControllerPublishVolume", "volumeattachment/a1", func(s *scene) {
			s.attachment.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{}}
		}},
		{"ControllerUnpublishVolume", "volumeattachment/a1", func(s *scene) {
			s.all.Pods, s.attachment.Status.DetachError = nil, &storagev1.VolumeError{}
		}},
		{"NodeStageVolume, NodePublishVolume", "pod/web", func(s *scene) {
			s.mounted(corev1.ConditionFalse, string(volume.ReasonFailedMount), "")
		}},
		{"NodeUnpublishVolume", "pod/web", func(s *scene) {
			s.pod.DeletionTimestamp = now()
			s.warn("uid-web", volume.ReasonFailedUnmount, "")
		}},
		{"NodeUnstageVolume", "volumeattachment/a1", func(s *scene) { s.stillMounted(""); s.next("node n1") }},
		{"NodeExpandVolume", "pvc/data", func(s *scene) { s.nodeGrowth("") }},
		{"NodeGetInfo", "node/n1", func(s *scene) {
			s.all.CSINodes = nil
			s.warn("uid-n1", volume.ReasonRegistrationRefused, "")
			s.next("node n1")
		}},
	} {
		b.WriteString("# " + c.name + "\n")
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			s := newScene()
			c.change(s)
			s.tell("mount by driver d: " + code.String() + ": on fire")
			chain, ok := ask(s.all, c.ask)
			if a := chain.Answer(); ok && a.State == why.Problem && strings.Contains(a.Because.Message, "on fire") {
				b.WriteString(code.String() + ": " + a.Because.Next + "\n")
			} else {
				t.Errorf("%s: %s is not told: %+v", c.name, code, a)
			}
		}
		b.WriteString("\n")
	}
	equal(t, "codes.txt", b.String())
}

// tell gives every failure of the scene a cause.
func (s *scene) tell(cause string) {
	for _, e := range s.all.Warnings {
		e.Message = cause
	}
	for i := range s.pod.Status.Conditions {
		s.pod.Status.Conditions[i].Message = cause
		s.pod.Annotations = map[string]string{volume.AnnNextMounted: mount.Failed(mount.Publish, "n1", cause, "node n1").Next}
	}
	for _, e := range []*storagev1.VolumeError{s.attachment.Status.AttachError, s.attachment.Status.DetachError} {
		if e != nil {
			e.Message = cause
		}
	}
}

// stillMounted has nobody use the volume, and the node not get rid of it.
func (s *scene) stillMounted(cause string) {
	s.all.Pods, s.attachment.UID = nil, "uid-a1"
	s.n1.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName(driver, "h1"))}
	s.warn("uid-a1", volume.ReasonFailedUnmount, cause)
}

// usedAlone has n1 say that it uses the volume, which is attached nowhere; told
// says that the Pod has heard so.
func (s *scene) usedAlone(told bool) {
	s.all.Pods = nil
	s.detached()
	s.use(pod("other", "n2"))
	s.n1.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName(driver, "h1"))}
	if told {
		s.warn("uid-other", volume.ReasonFailedAttach,
			`Multi-Attach error for volume "v1": it can be on one node at a time, and node n1 says that it still uses it`)
		s.next("node n1")
	}
}

// nodeGrowth has the file system not grow.
func (s *scene) nodeGrowth(cause string) {
	s.resizing(corev1.PersistentVolumeClaimNodeResizePending)
	s.warn("uid-data", volume.ReasonFailedNodeResize, cause)
	s.next("node n1")
}

func TestWhatIsNotThere(t *testing.T) {
	for _, subject := range []string{
		"pvc/other", "pv/other", "pod/other", "volumeattachment/other", "node/other",
		"storageclass/other", "csidriver/other", "csinode/other", "namespace/other", "volumesnapshot/other",
	} {
		if c, ok := ask(newScene().all, subject); ok {
			t.Errorf("%s is explained: %+v", subject, c)
		}
	}
}

func TestCauses(t *testing.T) {
	var b strings.Builder
	for _, r := range causeRows() {
		s := newScene()
		r.change(s)
		b.WriteString("# " + r.name + "\n")
		if err := why.RenderCauses(&b, why.Causes(s.all), true); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	equal(t, "causes.txt", b.String())
}
