package binder

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const (
	foreign = "example.org/foreign"
	driver  = "d.example"
	byHand  = "byhand"

	linkVolume   = "update persistentvolumes pv"
	volumePhase  = "update persistentvolumes/status pv"
	linkClaim    = "update persistentvolumeclaims ns/c"
	claimStatus  = "update persistentvolumeclaims/status ns/c"
	nothingFits  = "Normal ns/c FailedBinding: no volume of class byhand fits, and the class does not make any (user)"
	waitsForUser = "Normal ns/c WaitForFirstConsumer: waiting for first consumer to be created before binding (user)"
)

// bubble is a test of its own whose clock goes on when all rests.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// begin has a binder look at all there is.
func begin(a *kubetest.API, requests *controller.Requests) (stop func()) {
	_, stop = a.Run(func(env controller.Env) *controller.Controller { return New(env, requests) })
	return stop
}

// scene is what a binder finds and what it makes of it.
type scene struct {
	name          string
	before, after []runtime.Object
	writes, told  []string
}

func (s scene) play(t *testing.T) {
	t.Helper()
	bubble(t, s.name, func(t *testing.T) {
		a := kubetest.NewAPI(t, append(s.before, class(byHand, volume.NoProvisioner))...)
		defer begin(a, controller.NewRequests())()
		a.Has(s.after...)
		a.Wrote(s.writes...)
		a.Told(s.told...)
	})
}

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

func class(name, provisioner string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Provisioner: provisioner}
	for _, f := range change {
		f(c)
	}
	return c
}

func late(c *storagev1.StorageClass) {
	c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
}

func byDefault(c *storagev1.StorageClass) {
	c.Annotations = map[string]string{volume.AnnDefaultClass: "true"}
}

// claim is one of 1Gi that somebody has made and others have written to.
func claim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "c", UID: "c", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{foreign: "theirs"},
		Finalizers:  []string{foreign, volume.FinalizerClaimProtection}, ResourceVersion: "1",
	}}
	c.Spec.StorageClassName, c.Spec.Resources.Requests = ptr.To(byHand), storage("1Gi")
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Status.Phase = corev1.ClaimPending
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
		{Type: foreign, Status: corev1.ConditionTrue, Message: "theirs"},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

// named has a claim ask for a volume.
func named(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" }

// chosen is what the binder writes on a claim for which it has found a volume.
func chosen(c *corev1.PersistentVolumeClaim) {
	named(c)
	c.Annotations[volume.AnnBoundByController] = "yes"
}

// bound is the rest of what it writes.
func bound(c *corev1.PersistentVolumeClaim) {
	c.Annotations[volume.AnnBindCompleted] = "yes"
	c.Status.Phase, c.Status.Capacity = corev1.ClaimBound, storage("2Gi")
	c.Status.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}
}

func lost(c *corev1.PersistentVolumeClaim) {
	c.Status.Phase, c.Status.Capacity, c.Status.AccessModes = corev1.ClaimLost, nil, nil
}

// in has a claim be another one.
func in(namespace, name, uid string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Namespace, c.Name, c.UID = namespace, name, types.UID(uid) }
}

func of(class string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class }
}

// selected has placement have chosen a node.
func selected(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n1" }

// asked has a provisioner elsewhere be asked.
func asked(c *corev1.PersistentVolumeClaim) {
	c.Annotations[volume.AnnStorageProvisioner], c.Annotations[volume.AnnBetaStorageProvisioner] = driver, driver
}

// pv is a volume of 2Gi that somebody has made and others have written to.
func pv(change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pv", UID: "pv", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{foreign: "theirs"},
		Finalizers: []string{foreign, volume.FinalizerVolumeProtection}, ResourceVersion: "1",
	}}
	v.Spec.StorageClassName, v.Spec.Capacity = byHand, storage("2Gi")
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}
	v.Spec.MountOptions, v.Spec.PersistentVolumeReclaimPolicy = []string{"noatime"}, corev1.PersistentVolumeReclaimRetain
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driver, VolumeHandle: "h", FSType: "xfs", VolumeAttributes: map[string]string{"pool": "p"},
		NodePublishSecretRef: &corev1.SecretReference{Namespace: "secrets", Name: "s"},
	}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z"}},
			},
		}}},
	}
	v.Status.Phase = corev1.VolumeAvailable
	for _, f := range change {
		f(v)
	}
	return v
}

// phase gives a volume a phase.
func phase(p corev1.PersistentVolumePhase) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) { v.Status.Phase = p }
}

// policy gives a volume a reclaim policy.
func policy(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = p }
}

// keptFor has a user have kept a volume for a claim, with or without its uid.
func keptFor(namespace, name, uid string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: name, UID: types.UID(uid)}
	}
}

// referring is the reference that the binder writes.
func referring(v *corev1.PersistentVolume) {
	v.Spec.ClaimRef = &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "c", UID: "c", ResourceVersion: "1",
	}
}

// linked is a volume that the binder has chosen for the claim.
func linked(v *corev1.PersistentVolume) {
	referring(v)
	v.Annotations[volume.AnnBoundByController] = "yes"
}

// made has a volume be a provisioner's for the claim.
func made(v *corev1.PersistentVolume) {
	keptFor("ns", "c", "c")(v)
	v.Annotations[volume.AnnProvisionedBy], v.Spec.PersistentVolumeReclaimPolicy = driver,
		corev1.PersistentVolumeReclaimDelete
}

func pod(name, node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	p.Spec.NodeName = node
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	}}}
	return p
}
