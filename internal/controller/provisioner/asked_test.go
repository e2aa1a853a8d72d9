package provisioner

import (
	"strconv"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

const (
	shotPath    = "namespaces/ns/volumesnapshots/shot"
	contentPath = "volumesnapshotcontents/content"
	shotBody    = `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"namespace":"ns","name":"shot","uid":"u-shot","finalizers":["example.org/foreign"]},` +
		`"spec":{"theirs":true},"status":{"boundVolumeSnapshotContentName":"content","readyToUse":true,"restoreSize":"1Gi"}}`
	contentBody = `{"metadata":{"name":"content"},"spec":{"driver":"d.example","volumeSnapshotRef":{"uid":"u-shot"},"sourceVolumeMode":"Filesystem"},"status":{"snapshotHandle":"shot"}}`
)

// withShot has a snapshot that can be restored.
func (b *bench) withShot() {
	b.api.snapshots.put(shotPath, shotBody)
	b.api.snapshots.put(contentPath, contentBody)
}

func fromSnapshot(c *corev1.PersistentVolumeClaim) {
	c.Spec.DataSource = &corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(volume.GroupSnapshot), Kind: volume.KindSnapshot, Name: "shot",
	}
}

// classOf is class fast with a Secret for each purpose, named after it.
func classOf(purposes ...string) *storagev1.StorageClass {
	c := class()
	c.UID, c.Parameters = "u-fast", map[string]string{"pool": "p", "csi.storage.k8s.io/fstype": "xfs"}
	c.MountOptions = []string{"noatime", "discard"}
	for _, p := range purposes {
		c.Parameters["csi.storage.k8s.io/"+p+"-secret-name"] = p + "-${pvc.name}"
		c.Parameters["csi.storage.k8s.io/"+p+"-secret-namespace"] = "${pvc.namespace}-secrets"
	}
	return c
}

func ref(purpose string) *corev1.SecretReference {
	return &corev1.SecretReference{Name: purpose + "-c", Namespace: "ns-secrets"}
}

// key is the Secret by which volumes of claim c are made.
func key() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns-secrets", Name: "provisioner-c"},
		Data:       map[string][]byte{"key": []byte("value")},
	}
}

func keyed() map[string]string { return map[string]string{"key": "value"} }

// node is one in a zone, with the driver on it.
func node(name, zone string) (*corev1.Node, *storagev1.CSINode) {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driverName, NodeID: name, TopologyKeys: []string{"zone"}}}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone, "else": "x"}}}, n
}

func zones(all ...string) []*csipb.Topology {
	var out []*csipb.Topology
	for _, z := range all {
		out = append(out, &csipb.Topology{Segments: map[string]string{"zone": z}})
	}
	return out
}

// plainVolume is the object for a claim that wants nothing special.
func plainVolume(name string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pvc-u-" + name, Annotations: map[string]string{volume.AnnProvisionedBy: driverName},
		Finalizers: []string{volume.FinalizerVolumeProtection, volume.FinalizerProvisioner},
	}}
	v.Spec = corev1.PersistentVolumeSpec{
		Capacity: storage("1Gi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		ClaimRef: &corev1.ObjectReference{
			APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ns", Name: name, UID: claim(name).UID,
		},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, StorageClassName: "fast",
		VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
	}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "id-pvc-u-" + name, VolumeAttributes: map[string]string{"name": "pvc-u-" + name},
	}
	return v
}

// TestEverythingThatCanBeAsked: all that a class, a claim, a class of attributes,
// a snapshot and the nodes say is in the request, and with the driver's answer in
// the object; only the intent is written before.
func TestEverythingThatCanBeAsked(t *testing.T) {
	cl := classOf("provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand", "node-expand",
		"controller-modify")
	late := storagev1.VolumeBindingWaitForFirstConsumer
	cl.VolumeBindingMode, cl.ReclaimPolicy = &late, ptr.To(corev1.PersistentVolumeReclaimRetain)
	cl.AllowedTopologies = []corev1.TopologySelectorTerm{
		{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"a", "b"}}}},
	}
	c := claim("c")
	c.Annotations[volume.AnnSelectedNode] = "n-b"
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}
	c.Spec.VolumeAttributesClassName = ptr.To("gold")
	fromSnapshot(c)
	gold := &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: driverName, Parameters: map[string]string{"iops": "9"},
	}
	nodeA, csiA := node("n-a", "a")
	nodeB, csiB := node("n-b", "b")
	b := newBench(t, func(s *setup) { s.config.Plugin.AccessibilityConstraints = true }, c, gold, key(), nodeA,
		csiA, nodeB, csiB)
	b.withShot()
	if err := b.api.Tracker().Add(cl); err != nil {
		t.Fatal(err)
	}
	b.restart()
	source := &csipb.VolumeContentSource{
		Type: &csipb.VolumeContentSource_Snapshot{Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: "shot"}},
	}
	b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
		b.open("u-c")
		return csitest.Action{Answer: &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
			VolumeId: "h", CapacityBytes: 2 * gib, VolumeContext: map[string]string{"lun": "7"}, ContentSource: source,
			AccessibleTopology: zones("b"),
		}}}
	})
	b.works(kindClaim, "u-c")
	reader := capability("xfs", "noatime", "discard")
	reader.AccessMode = &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY}
	b.called(&csipb.CreateVolumeRequest{
		Name: "pvc-u-c", CapacityRange: &csipb.CapacityRange{RequiredBytes: gib}, Parameters: map[string]string{"pool": "p"},
		Secrets:           keyed(),
		MutableParameters: map[string]string{"iops": "9"}, VolumeContentSource: source,
		VolumeCapabilities:        []*csipb.VolumeCapability{capability("xfs", "noatime", "discard"), reader},
		AccessibilityRequirements: &csipb.TopologyRequirement{Requisite: zones("a", "b"), Preferred: zones("b", "a")},
	})
	b.wrote("create configmaps volplane-intents-1", "create persistentvolumes pvc-u-c")
	want := plainVolume("c")
	want.Finalizers = []string{volume.FinalizerVolumeProtection}
	want.Annotations = map[string]string{
		volume.AnnProvisionedBy: driverName, volume.AnnDeletionSecretName: "provisioner-c",
		volume.AnnDeletionSecretNamespace: "ns-secrets",
		volume.AnnModifySecretName:        "controller-modify-c", volume.AnnModifySecretNamespace: "ns-secrets",
	}
	want.Spec.Capacity, want.Spec.AccessModes = storage("2Gi"), c.Spec.AccessModes
	want.Spec.PersistentVolumeReclaimPolicy, want.Spec.MountOptions = corev1.PersistentVolumeReclaimRetain, cl.MountOptions
	want.Spec.VolumeAttributesClassName = ptr.To("gold")
	want.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}},
			}},
		}},
	}
	want.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "h", FSType: "xfs", VolumeAttributes: map[string]string{"lun": "7"},
		ControllerPublishSecretRef: ref("controller-publish"), NodeStageSecretRef: ref("node-stage"),
		NodePublishSecretRef:      ref("node-publish"),
		ControllerExpandSecretRef: ref("controller-expand"), NodeExpandSecretRef: ref("node-expand"),
	}
	b.volumesAre(want)
	b.told([5]string{"Normal", "ProvisioningSucceeded", "c", "", "Successfully provisioned volume pvc-u-c"})
}

// TestNothingThatIsNotAsked: a claim that wants nothing special, and a copy of a
// block volume.
func TestNothingThatIsNotAsked(t *testing.T) {
	b := newBench(t, nil, claim("c"), class())
	b.works(kindClaim, "u-c")
	b.called(asksFor("c"))
	b.volumesAre(plainVolume("c"))

	source, copied := original()
	source.Spec.VolumeMode, copied.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock),
		ptr.To(corev1.PersistentVolumeBlock)
	c := clone()
	c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	b = newBench(t, nil, source, copied, c, class())
	b.driver.OnCall("CreateVolume", answersCopyOf("h"))
	b.works(kindClaim, "u-c")
	want := asksFor("c")
	want.VolumeCapabilities[0].AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
	want.VolumeContentSource = copyOf("h")
	b.called(want)
	made := plainVolume("c")
	made.Spec.VolumeMode, made.Spec.CSI.VolumeHandle, made.Spec.CSI.VolumeAttributes =
		ptr.To(corev1.PersistentVolumeBlock), "made", nil
	b.volumesAre(made, copied)
	// The source is protected before anybody may read it.
	b.wrote("create configmaps volplane-intents-1", "update persistentvolumeclaims source",
		"create persistentvolumes pvc-u-c")
	source.Finalizers = append(source.Finalizers, volume.FinalizerCloning)
	b.claimIs(source)
}

// original is a claim of which there can be copies, and its volume.
func original() (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	c := claim("source")
	c.Finalizers, c.Labels = []string{foreign}, map[string]string{"a": "b"}
	c.Spec.VolumeName, c.Status.Phase = "pv-source", corev1.ClaimBound
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-source"}}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "source", UID: "u-source"}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h"}
	return c, v
}

// clone is claim c that wants a copy.
func clone() *corev1.PersistentVolumeClaim {
	c := claim("c")
	c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "source"}
	return c
}

func copyOf(handle string) *csipb.VolumeContentSource {
	return &csipb.VolumeContentSource{
		Type: &csipb.VolumeContentSource_Volume{Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: handle}},
	}
}

func answersCopyOf(handle string) func(int, any) csitest.Action {
	return func(int, any) csitest.Action {
		return csitest.Action{
			Answer: &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: "made", ContentSource: copyOf(handle)}},
		}
	}
}

// TestWhatCannotBeAsked: nothing is called or written, and the claim's owner is told.
func TestWhatCannotBeAsked(t *testing.T) {
	attributed := claim("c")
	attributed.Spec.VolumeAttributesClassName = ptr.To("gold")
	source, copied := original()
	restored := claim("c")
	fromSnapshot(restored)
	placed := claim("c")
	placed.Annotations[volume.AnnSelectedNode] = "nowhere"
	old := claim("c")
	old.Annotations = map[string]string{}
	for i, c := range []struct {
		change  func(*setup)
		objects []runtime.Object
		// next and words are those of the event; none is that there is nothing to
		// be told.
		next, words string
	}{
		{nil, []runtime.Object{claim("c")}, "user", `storageclass.storage.k8s.io "fast" not found`},
		{nil, []runtime.Object{old, class()}, "", ""},
		{func(s *setup) { s.late = true }, []runtime.Object{claim("c"), class()}, "", ""},
		{func(s *setup) {
			s.config.Plugin.ControllerService = false
		}, []runtime.Object{claim("c"), class()}, "user", "the capability CONTROLLER_SERVICE"},
		{func(s *setup) {
			s.config.Controller.CreateDelete = false
		}, []runtime.Object{claim("c"), class()}, "user", "the capability CREATE_DELETE_VOLUME"},
		{nil, []runtime.Object{attributed, class()}, "user", "gold does not exist"},
		{func(s *setup) {
			s.config.Controller.Modify = false
		}, []runtime.Object{attributed, class()}, "user", "MODIFY_VOLUME"},
		{func(s *setup) {
			s.config.Controller.Clone = false
		}, []runtime.Object{clone(), class(), source, copied}, "user", "CLONE_VOLUME"},
		{nil, []runtime.Object{clone(), class()}, "user", "claim ns/source does not exist"},
		{nil, []runtime.Object{clone(), class(), source}, "user", "claim ns/source is not bound"},
		{func(s *setup) {
			s.config.Controller.Snapshot = false
		}, []runtime.Object{restored, class()}, "user", "CREATE_DELETE_SNAPSHOT"},
		{nil, []runtime.Object{restored, class()}, "user", "snapshot ns/shot: it does not exist"},
		{func(s *setup) {
			s.config.Plugin.AccessibilityConstraints = true
		}, []runtime.Object{claim("c"), class()}, "placement", ""},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			b := newBench(t, c.change, c.objects...)
			if c.next == "" {
				b.works(kindClaim, "u-c")
				b.told()
			} else {
				b.errs(kindClaim, "u-c", c.words)
				b.told([5]string{"Warning", "ProvisioningFailed", "c", c.next, c.words})
			}
			b.called()
			b.wrote()
		})
	}
}

// TestASnapshotMustProveItself: what is read of it decides whether it is restored.
func TestASnapshotMustProveItself(t *testing.T) {
	c := claim("c")
	fromSnapshot(c)
	block := c.DeepCopy()
	block.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	for name, one := range map[string]struct {
		claim         *corev1.PersistentVolumeClaim
		shot, content string
		words         string
	}{
		"being deleted": {c, `{"metadata":{"uid":"u-shot","deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"readyToUse":true,"boundVolumeSnapshotContentName":"content"}}`, contentBody, "it is being deleted"},
		"not ready": {
			c, `{"metadata":{"uid":"u-shot"},"status":{"boundVolumeSnapshotContentName":"content"}}`, contentBody, "not ready",
		},
		"names no content": {
			c, `{"metadata":{"uid":"u-shot"},"status":{"readyToUse":true}}`, contentBody, "do not name each other",
		},
		"its content is gone": {c, shotBody, "", "do not name each other"},
		"another's content": {
			c, shotBody,
			`{"spec":{"driver":"d.example","volumeSnapshotRef":{"uid":"u-other"}},"status":{"snapshotHandle":"shot"}}`,
			"do not name each other",
		},
		"another driver's": {
			c, shotBody,
			`{"spec":{"driver":"other.example","volumeSnapshotRef":{"uid":"u-shot"}},"status":{"snapshotHandle":"shot"}}`,
			"it is one of driver other.example",
		},
		"without a handle": {
			c, shotBody, `{"spec":{"driver":"d.example","volumeSnapshotRef":{"uid":"u-shot"}}}`,
			"does not name a snapshot of the driver",
		},
		"too large":    {c, `{"metadata":{"uid":"u-shot"},"status":{"readyToUse":true,"boundVolumeSnapshotContentName":"content","restoreSize":"2Gi"}}`, contentBody, "its data need 2147483648 bytes"},
		"another mode": {block, shotBody, contentBody, "the claim wants Block"},
		"mode may change": {
			block, shotBody,
			`{"metadata":{"annotations":{"snapshot.storage.kubernetes.io/allow-volume-mode-change":"true"}},"spec":{"driver":"d.example","volumeSnapshotRef":{"uid":"u-shot"},"sourceVolumeMode":"Filesystem"},"status":{"snapshotHandle":"shot"}}`, "",
		},
		"nobody knows them": {c, "", "", "is not installed"},
		"as it should be":   {c, shotBody, contentBody, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, one.claim, class())
			b.api.snapshots.absent = one.shot == ""
			b.api.snapshots.put(shotPath, one.shot)
			if one.content != "" {
				b.api.snapshots.put(contentPath, one.content)
			}
			if one.words == "" {
				b.works(kindClaim, "u-c")
				return
			}
			b.errs(kindClaim, "u-c", one.words)
			b.called()
			b.wrote()
		})
	}
}

// TestWhatCannotBeReadStopsAClaim: nothing is decided from half of the facts.
func TestWhatCannotBeReadStopsAClaim(t *testing.T) {
	c := claim("c")
	fromSnapshot(c)
	for _, path := range []string{shotPath, contentPath} {
		b := newBench(t, nil, c, class())
		b.withShot()
		b.api.snapshots.refuse("GET "+path, 500)
		b.errs(kindClaim, "u-c", "read ")
		b.called()
		b.wrote()
		b.told()
	}
	attributed := claim("c")
	attributed.Spec.VolumeAttributesClassName = ptr.To("gold")
	b := newBench(t, nil, attributed, class())
	b.api.Refuse("get", "volumeattributesclasses", errLost)
	b.errs(kindClaim, "u-c", "read VolumeAttributesClass gold: the answer is lost")
	b.told()

	// A Secret that is missing is found before anything is written or made.
	b = newBench(t, nil, claim("c"))
	if err := b.api.Tracker().Add(classOf("provisioner")); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.errs(kindClaim, "u-c", "read secret ns-secrets/provisioner-c")
	b.told([5]string{
		"Warning", "ProvisioningFailed", "c", "user", "no volume is asked for: read secret ns-secrets/provisioner-c",
	})
	b.called()
	b.wrote()
}
