package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// scratchPod creates a Pod with a generic ephemeral volume "scratch" of a class.
func (p *plane) scratchPod(name, node, class string) {
	p.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pod.Spec.NodeName = node
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	pod.Spec.Volumes = []corev1.Volume{{
		Name: "scratch",
		VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"purpose": "scratch"}},
				Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: ptr.To(class), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
					},
				},
			},
		}},
	}}
	_, err := p.client.CoreV1().Pods("default").Create(p.ctx, pod, metav1.CreateOptions{})
	p.must(err)
}

// made waits until the volume of such a Pod exists, in another claim than before.
func (p *plane) made(claim string, before types.UID) types.UID {
	p.t.Helper()
	var uid types.UID
	p.eventually(func() string {
		c, err := p.client.CoreV1().PersistentVolumeClaims("default").Get(p.ctx, claim, metav1.GetOptions{})
		if uid = c.UID; err != nil || uid == before || c.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("claim %s is %v %s: %v", claim, uid, c.Status.Phase, err)
		}
		return ""
	})
	return uid
}

// TestEphemeral: an ephemeral volume is created and deleted with its Pod, even if the controllers do not
// run when the Pod is created or deleted.
func TestEphemeral(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	p.createLateClass("late", p.conn.Name)
	p.scratchPod("web", "", "late")
	if node := p.waitForPlacement("web"); node == "" {
		t.Error("no node")
	}
	p.made("web-scratch", "")
	if c := p.getClaim("web-scratch"); c.Labels["purpose"] != "scratch" || len(c.OwnerReferences) != 1 {
		t.Errorf("claim is %+v", c.ObjectMeta)
	}
	p.deletePod("web")
	p.waitForNoClaim("web-scratch")

	p.scratchPod("job", "n1", "fast")
	p.made("job-scratch", "")
	p.stop()
	p.deletePod("job")
	p.start()
	p.waitForNoClaim("job-scratch")
	p.waitForDetached()
	p.nothingLeft()
}
