package ephemeral

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/golden"
)

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "plain"},
		{Name: "data", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
				Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("fast")},
			},
		}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func going(p *corev1.Pod)   { p.DeletionTimestamp = &metav1.Time{} }
func anew(p *corev1.Pod)    { p.UID = "u2" }
func inOther(p *corev1.Pod) { p.Namespace = "other" }

// made returns the claim that is made for a Pod.
func made(p *corev1.Pod, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := Claim(Facts{Pod: p, Volume: &p.Spec.Volumes[1]}).Create
	for _, f := range change {
		f(c)
	}
	return c
}

func byHand(c *corev1.PersistentVolumeClaim)  { c.OwnerReferences = nil }
func leaving(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }
func ofASet(c *corev1.PersistentVolumeClaim) {
	c.OwnerReferences[0].APIVersion, c.OwnerReferences[0].Kind = "apps/v1", "StatefulSet"
}

func sharedWith(c *corev1.PersistentVolumeClaim) {
	c.OwnerReferences = append(c.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x"})
}

func TestClaims(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct {
		argues string
		pod    *corev1.Pod
		claim  *corev1.PersistentVolumeClaim
	}{
		{"a claim is made of the Pod's template, and belongs to the Pod", pod(), nil},
		{"one is enough", pod(), made(pod())},
		{"a Pod that is being deleted gets no claim", pod(going), nil},
		{"a claim that somebody else made is not taken", pod(), made(pod(), byHand)},
		{"the claim of an earlier Pod of the same name goes first", pod(anew), made(pod())},
		{"one of a Pod of another name is not waited for", pod(), made(pod(anew), func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences[0].Name = "db"
		})},
	} {
		p := Claim(Facts{Pod: c.pod, Volume: &c.pod.Spec.Volumes[1], Claim: c.claim})
		fmt.Fprintf(&out, "# %s\n", c.argues)
		if n := p.Create; n != nil {
			o := n.OwnerReferences[0]
			fmt.Fprintf(&out, "create %s/%s labels=%v annotations=%v class=%s owner=%s/%s/%s/%s controller=%v blocks=%v\n",
				n.Namespace, n.Name, n.Labels, n.Annotations, *n.Spec.StorageClassName, o.APIVersion, o.Kind, o.Name, o.UID,
				*o.Controller, *o.BlockOwnerDeletion)
		}
		fmt.Fprintf(&out, "refused=%v\n%s: %s -> %s\n\n", p.Refused, p.Because.Reason, p.Because.Message, p.Because.Next)
	}
	for _, c := range []struct {
		argues string
		claim  *corev1.PersistentVolumeClaim
		pod    *corev1.Pod
	}{
		{"a claim stays with its Pod", made(pod()), pod()},
		{"and goes with it", made(pod()), nil},
		{"another Pod of the name does not keep it", made(pod()), pod(anew)},
		{"what is going need not be deleted", made(pod(), leaving), nil},
		{"a claim of nobody stays", made(pod(), byHand), nil},
		{"so does one of something else", made(pod(), ofASet), nil},
		{
			"of a Pod of another group",
			made(pod(), func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences[0].APIVersion = "example.com/v1" }), nil,
		},
		{
			"or of what is no Pod",
			made(pod(), func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences[0].Kind = "ReplicationController" }), nil,
		},
		{"and one that has a second owner", made(pod(), sharedWith), nil},
	} {
		remove, why := Left(c.claim, c.pod)
		fmt.Fprintf(&out, "# %s\ndelete=%v\n%s: %s -> %s\n\n", c.argues, remove, why.Reason, why.Message, why.Next)
	}
	why := Failed("web-data", "forbidden")
	fmt.Fprintf(&out, "# people hear why no claim is made\n%s: %s -> %s\n", why.Reason, why.Message, why.Next)
	golden.Equal(t, "testdata/claims.txt", out.String())
}

func TestStranger(t *testing.T) {
	other := made(pod())
	other.Name = "web-plain"
	for _, c := range []struct {
		argues string
		pod    *corev1.Pod
		claim  *corev1.PersistentVolumeClaim
		want   bool
	}{
		{"its own", pod(), made(pod()), false},
		{"made by hand", pod(), made(pod(), byHand), true},
		{"of an earlier Pod", pod(anew), made(pod()), true},
		{"of a Pod elsewhere", pod(inOther), made(pod()), true},
		{"a claim of another name", pod(), other, false},
		{
			"a claim of no volume of the Pod", pod(),
			made(pod(), byHand, func(c *corev1.PersistentVolumeClaim) { c.Name = "data" }), false,
		},
		{
			"a claim of a volume without a template", pod(),
			made(pod(), byHand, func(c *corev1.PersistentVolumeClaim) { c.Name = "web-plain" }), false,
		},
	} {
		if got := Stranger(c.pod, c.claim); got != c.want {
			t.Errorf("%s: %v", c.argues, got)
		}
	}
}

// TestTemplateIsCopied: what is made of a template does not share its maps, for
// Pods lie in a cache.
func TestTemplateIsCopied(t *testing.T) {
	p := pod()
	c := made(p)
	c.Labels["a"] = "changed"
	if diff := cmp.Diff(pod(), p); diff != "" {
		t.Error(diff)
	}
}
