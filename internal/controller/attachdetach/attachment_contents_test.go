package attachdetach

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

// TestWholeAttachment: a new attachment names the volume, the node and the driver; with the attacher in this process,
// it also has everything for its detach, except with a Secret, which the attacher reads first.
func TestWholeAttachment(t *testing.T) {
	objects := func(secret *corev1.SecretReference) []runtime.Object {
		o := used("pv", "h", "n1")
		o[0].(*corev1.PersistentVolume).Spec.CSI.ControllerPublishSecretRef = secret
		n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		n.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "other", NodeID: "wrong"}, {Name: "d", NodeID: "id-n1"}}
		return append(o, n, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	}
	near := func(driver string) bool { return driver == "d" }
	for name, c := range map[string]struct {
		near     func(string) bool
		secret   *corev1.SecretReference
		recorded bool
	}{
		"far": {nil, nil, false}, "near": {near, nil, true},
		"near with a secret": {near, &corev1.SecretReference{Name: "s", Namespace: "secrets"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client, controls := started(t, Options{Now: time.Now, Near: c.near}, objects(c.secret)...)
			for _, key := range []controller.Key{
				{Kind: kindNode, Name: "n1"}, {Kind: kindAttach, Name: attach.NameOf("d", "h", "n1")},
			} {
				if _, err := controls.Reconcile(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			want := &storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: attach.NameOf("d", "h", "n1")},
				Spec: storagev1.VolumeAttachmentSpec{
					Attacher: "d", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv")},
				},
			}
			if c.recorded {
				want.Finalizers = []string{volume.AttacherFinalizer("d")}
				want.Annotations = map[string]string{volume.AnnNodeID: "id-n1", volume.AnnDetach: `{"handle":"h"}`}
			}
			client.Is(want)
		})
	}
}

// TestWhatIsNotAttached: a volume is attached only for a Pod whose own claim is bound to it, in both directions.
func TestWhatIsNotAttached(t *testing.T) {
	type objects struct {
		v   *corev1.PersistentVolume
		c   *corev1.PersistentVolumeClaim
		p   *corev1.Pod
		d   *storagev1.CSIDriver
		got bool
	}
	for name, change := range map[string]func(*objects){
		"all is well":            func(o *objects) { o.got = true },
		"another claim's volume": func(o *objects) { o.v.Spec.ClaimRef.UID = "other" },
		"nobody's volume":        func(o *objects) { o.v.Spec.ClaimRef = nil },
		"no CSI volume":          func(o *objects) { o.v.Spec.CSI = nil },
		"a claim not bound":      func(o *objects) { o.c.Status.Phase = corev1.ClaimPending },
		"a lost claim":           func(o *objects) { o.c.Status.Phase = corev1.ClaimLost },
		"a claim elsewhere":      func(o *objects) { o.c.Namespace = "elsewhere" },
		"a Pod elsewhere":        func(o *objects) { o.p.Namespace = "elsewhere" },
		"a Pod of another node":  func(o *objects) { o.p.Spec.NodeName = "n2" },
		"a Pod that failed":      func(o *objects) { o.p.Status.Phase = corev1.PodFailed },
		"a Pod that succeeded":   func(o *objects) { o.p.Status.Phase = corev1.PodSucceeded },
		"a Pod that is going": func(o *objects) {
			o.p.DeletionTimestamp, o.p.Finalizers, o.got = &metav1.Time{Time: time.Unix(1e9, 0)}, []string{"a/b"}, true
		},
		"no need to attach": func(o *objects) { o.d.Spec.AttachRequired = ptr.To(false) },
		"a need to attach":  func(o *objects) { o.d.Spec.AttachRequired, o.got = ptr.To(true), true },
		"somebody's claim of that name": func(o *objects) {
			o.c.Name, o.v.Spec.ClaimRef.Name = "pod-pv-v", "pod-pv-v"
			o.p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
		},
		"the Pod's own claim": func(o *objects) {
			o.c.Name, o.v.Spec.ClaimRef.Name, o.got = "pod-pv-v", "pod-pv-v", true
			o.p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
			o.c.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: o.p.Name, UID: o.p.UID, Controller: ptr.To(true)},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := used("pv", "h", "n1")
			o := &objects{
				v: all[0].(*corev1.PersistentVolume), c: all[1].(*corev1.PersistentVolumeClaim), p: all[2].(*corev1.Pod),
				d: &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d"}},
			}
			change(o)
			client, c := started(t, Options{Now: time.Now},
				append(all, o.d, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})...)
			for _, key := range []controller.Key{
				{Kind: kindNode, Name: "n1"}, {Kind: kindAttach, Name: attach.NameOf("d", "h", "n1")},
			} {
				if _, err := c.Reconcile(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			made, err := client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(made.Items) > 0 != o.got {
				t.Errorf("attachments: %v, %v; want one: %v", made.Items, err, o.got)
			}
		})
	}
}

// TestNodeIsTold: volumesAttached lists the attached volumes, and none that no longer is.
func TestNodeIsTold(t *testing.T) {
	va := attachment()
	va.Status.Attached, va.Status.AttachmentMetadata = true, map[string]string{"devicePath": "/dev/x"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "kubernetes.io/csi/gone^gone"}}
	client, c := started(t, Options{Now: time.Now}, append(used("pv", "h", "n1"), va, node)...)
	if _, err := c.Reconcile(t.Context(), controller.Key{Kind: kindNode, Name: "n1"}); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, a := range got.Status.VolumesAttached {
		names = append(names, string(a.Name))
	}
	if !slices.Equal(names, []string{volume.UniqueName("d", "h")}) {
		t.Errorf("attached: %v", names)
	}
}

// TestAnEarlierMachine: when a driver registers with another node id, the attachment to the node's earlier machine is
// removed, and the node agent does not use the volume before that; but the attachment stays while a Pod may have the
// volume, because the same machine may have mounted it.
func TestAnEarlierMachine(t *testing.T) {
	t.Parallel()
	for reason, goes := range map[volume.Reason]bool{
		volume.ReasonAttachedUnderOtherID: true, volume.ReasonFailedMount: false, volume.ReasonMounted: false,
	} {
		status := corev1.ConditionFalse
		if reason == volume.ReasonMounted {
			status = corev1.ConditionTrue
		}
		objects := used("pv", "h", "n1")
		for _, o := range objects {
			if p, is := o.(*corev1.Pod); is {
				p.Status.Conditions = []corev1.PodCondition{
					{Type: volume.ConditionVolumesMounted, Status: status, Reason: string(reason)},
				}
			}
		}
		registered := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		registered.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "d", NodeID: "new"}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName("d", "h"))}
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{
			Name: attach.NameOf("d", "h", "n1"), UID: "first", Finalizers: []string{volume.AttacherFinalizer("d")},
			Annotations: map[string]string{volume.AnnNodeID: "old", volume.AnnDetach: `{"handle":"h"}`},
		}}
		a.Spec.Attacher, a.Spec.NodeName, a.Spec.Source.PersistentVolumeName = "d", "n1", ptr.To("pv")
		a.Status.Attached = true
		client, controls := started(t, Options{Now: time.Now}, append(objects, registered, node, a)...)
		for _, key := range []controller.Key{{Kind: kindNode, Name: "n1"}, {Kind: kindDetach, Name: a.Name}} {
			if _, err := controls.Reconcile(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		left, err := client.StorageV1().VolumeAttachments().Get(t.Context(), a.Name, metav1.GetOptions{})
		if gone := err != nil || left.DeletionTimestamp != nil; gone != goes {
			t.Errorf("volumes mounted is %s for %s: the attachment is deleted: %v (%v)", status, reason, gone, err)
		}
	}
}
