package protect

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

func TestProtection(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "x", DeletionTimestamp: &metav1.Time{}, Finalizers: []string{
		"example.com/keep", volume.FinalizerClaimProtection, volume.FinalizerVolumeProtection,
	}}
	alive, bare, going, kept := meta, meta, meta, meta
	kept.Finalizers = []string{volume.FinalizerVolumeProtection, volume.FinalizerProvisioner}
	alive.DeletionTimestamp, bare.DeletionTimestamp = nil, nil
	bare.Finalizers, going.Finalizers = nil, nil
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta}
	pod := func(node string, phase corev1.PodPhase) []*corev1.Pod {
		return []*corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Phase: phase},
		}}
	}
	// Its volume would have a claim of this name, made for it.
	stranger := pod("n1", corev1.PodRunning)
	stranger[0].Name = "earlier"
	stranger[0].Spec.Volumes = []corev1.Volume{
		{Name: "x", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
	}
	earlier := claim.DeepCopy()
	earlier.Name = "earlier-x"
	var out strings.Builder
	for _, c := range []struct {
		argues string
		claim  *corev1.PersistentVolumeClaim
		users  []*corev1.Pod
	}{
		{"a claim that is not deleted stays protected", &corev1.PersistentVolumeClaim{ObjectMeta: alive}, nil},
		{"a claim that came without protection gets it", &corev1.PersistentVolumeClaim{ObjectMeta: bare}, nil},
		{
			"not when it is deleted already: the server would refuse", &corev1.PersistentVolumeClaim{ObjectMeta: going},
			pod("n1", corev1.PodRunning),
		},
		{"nobody uses the claim", claim, nil},
		{"a Pod with a node uses it", claim, pod("n1", corev1.PodRunning)},
		{"a Pod that has ended may still have it mounted", claim, pod("n1", corev1.PodSucceeded)},
		{"a Pod without a node has never had it", claim, pod("", corev1.PodPending)},
		{"a Pod for which another claim of the name will be made does not use it", earlier, stranger},
	} {
		next, why := Claim(c.claim, c.users)
		tell(t, &out, c.argues, c.claim, next, next != nil, why)
	}
	for _, c := range []struct {
		argues string
		meta   metav1.ObjectMeta
		phase  corev1.PersistentVolumePhase
	}{
		{"a bound volume stays", meta, corev1.VolumeBound},
		{"a released one may go", meta, corev1.VolumeReleased},
		{"not before its provisioner, which has two finalizers to take", kept, corev1.VolumeReleased},
		{"a volume that is not deleted stays protected", alive, corev1.VolumeReleased},
		{"a volume that came without protection gets it", bare, corev1.VolumeAvailable},
		{"not when it is deleted already", going, corev1.VolumeBound},
	} {
		v := &corev1.PersistentVolume{ObjectMeta: c.meta, Status: corev1.PersistentVolumeStatus{Phase: c.phase}}
		next, why := Volume(v)
		tell(t, &out, c.argues, v, next, next != nil, why)
	}
	golden.Equal(t, "testdata/protection.txt", out.String())
}

func TestUnused(t *testing.T) {
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p-v"}}
		c.Status.Phase = corev1.ClaimBound
		change(c)
		return c
	}
	told := func(status corev1.ConditionStatus) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
				{Type: corev1.PersistentVolumeClaimResizing, Status: corev1.ConditionTrue},
				{Type: corev1.PersistentVolumeClaimUnused, Status: status},
			}
		}
	}
	pod := func(phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Status: corev1.PodStatus{Phase: phase}}
	}
	// Its volume would have a claim of this name, made for it.
	stranger := pod(corev1.PodRunning)
	stranger.Name = "p"
	stranger.Spec.Volumes = []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
	}
	nobody := func(*corev1.PersistentVolumeClaim) {}
	for _, c := range []struct {
		argues string
		claim  *corev1.PersistentVolumeClaim
		users  []*corev1.Pod
		want   string
	}{
		{"nobody uses it", claim(nobody), nil, "True NoPodsUsingPVC"},
		{"that is told once", claim(told(corev1.ConditionTrue)), nil, ""},
		{"a Pod counts before it has a node", claim(nobody), []*corev1.Pod{pod("")}, "False PodUsingPVC"},
		{
			"also one of several", claim(told(corev1.ConditionTrue)),
			[]*corev1.Pod{pod(corev1.PodFailed), pod("")},
			"False PodUsingPVC",
		},
		{"that is told once, too", claim(told(corev1.ConditionFalse)), []*corev1.Pod{pod("")}, ""},
		{
			"a Pod that has ended does not count", claim(told(corev1.ConditionFalse)),
			[]*corev1.Pod{pod(corev1.PodFailed), pod(corev1.PodSucceeded)},
			"True NoPodsUsingPVC",
		},
		{
			"nor does one for which another claim of the name will be made", claim(nobody),
			[]*corev1.Pod{stranger},
			"True NoPodsUsingPVC",
		},
		{"a claim without a volume says nothing", claim(func(c *corev1.PersistentVolumeClaim) {
			c.Status.Phase = corev1.ClaimPending
		}), nil, ""},
		{"nor does one that is being deleted", claim(func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp = &metav1.Time{}
		}), nil, ""},
	} {
		got, now := "", metav1.Unix(1, 0)
		if u := Unused(c.claim, c.users, now); u != nil && u.LastTransitionTime == now {
			got = string(u.Status) + " " + u.Reason
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.argues, got, c.want)
		}
	}
}

func TestAttributesClassProtection(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "x", DeletionTimestamp: &metav1.Time{}, Finalizers: []string{
		"example.com/keep", volume.FinalizerAttributesProtection,
	}}
	alive, bare, going := meta, meta, meta
	alive.DeletionTimestamp, bare.DeletionTimestamp = nil, nil
	bare.Finalizers, going.Finalizers = nil, nil
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		meta   metav1.ObjectMeta
		claims []*corev1.PersistentVolumeClaim
		pvs    []*corev1.PersistentVolume
	}{
		{"a class that is not deleted stays protected", alive, nil, nil},
		{"a class that came without protection gets it", bare, nil, nil},
		{"not when it is deleted already", going, nil, nil},
		{"a claim names the class", meta, []*corev1.PersistentVolumeClaim{claim}, nil},
		{"a volume has it", meta, nil, []*corev1.PersistentVolume{{ObjectMeta: alive}}},
		{"nobody names it any more", meta, nil, nil},
	} {
		class := &storagev1.VolumeAttributesClass{ObjectMeta: c.meta}
		next, why := AttributesClass(class, c.claims, c.pvs)
		tell(t, &out, c.argues, class, next, next != nil, why)
	}
	golden.Equal(t, "testdata/attributes.txt", out.String())
}

// tell writes what is decided about an object.
func tell(
	t *testing.T, out *strings.Builder, argues string, before, after metav1.Object, written bool, why volume.Because,
) {
	t.Helper()
	what := "stay\n"
	if written {
		what = "write\n" + golden.Change(t, before, after)
	}
	fmt.Fprintf(out, "# %s\n%s%s: %s -> %s\n\n", argues, what, why.Reason, why.Message, why.Next)
}
