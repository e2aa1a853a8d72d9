package why_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/volume"
)

// bound returns a claim, bound, used by one Pod on n1 that has it mounted.
func bound() why.Facts {
	attached := storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"}, Status: storagev1.VolumeAttachmentStatus{Attached: true}}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p1"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue, Message: "data=/m"}}
	f := why.Facts{Namespace: "ns", ClaimName: "data", Claim: &corev1.PersistentVolumeClaim{}, Volume: &corev1.PersistentVolume{}}
	f.Claim.Name, f.Claim.Namespace, f.Claim.Spec.VolumeName, f.Claim.Status.Phase = "data", "ns", "pv", corev1.ClaimBound
	f.Volume.Name, f.Volume.Spec.CSI = "pv", &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
	f.Attachments, f.Pods = []storagev1.VolumeAttachment{attached}, []corev1.Pod{pod}
	f.Nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "n2"}}}
	return f
}

func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*why.Facts)
		state  why.State
		reason volume.Reason
		text   string
		next   string
	}{
		{"mounted", func(*why.Facts) {}, why.OK, volume.ReasonMounted, "data=/m", ""},
		{"no claim", func(f *why.Facts) { f.Claim = nil }, why.Problem, volume.ReasonClaimMissing, "no claim data", "user"},
		{"held by another node", func(f *why.Facts) {
			f.Pods = append(f.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p2"}, Spec: corev1.PodSpec{NodeName: "n2"}})
		}, why.Waiting, volume.ReasonMultiAttach, "node n1 has it for pod p1", "pod p1"},
		{"claim deleted while used", func(f *why.Facts) {
			now := metav1.Now()
			f.Claim.DeletionTimestamp, f.Claim.Finalizers = &now, []string{volume.FinalizerClaimProtection}
		}, why.Waiting, volume.ReasonTerminating, "pod p1 on node n1", "pod p1"},
		{"attach fails", func(f *why.Facts) {
			f.Attachments[0].Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "boom"}}
			f.CSINodes = []storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d"}}}}}
		}, why.Problem, volume.ReasonFailedAttach, "boom", "d"},
		{"driver not on the node", func(f *why.Facts) { f.Attachments = nil }, why.Problem, volume.ReasonDriverMissing, "not registered on node n1", "d"},
		{"late class without a consumer", func(f *why.Facts) {
			late := storagev1.VolumeBindingWaitForFirstConsumer
			name := "local"
			f.Class = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "d", VolumeBindingMode: &late}
			f.CSINodes = []storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d"}}}}}
			f.Pods, f.Attachments, f.Volume = nil, nil, nil
			f.Claim.Spec.VolumeName, f.Claim.Spec.StorageClassName, f.Claim.Status.Phase = "", &name, corev1.ClaimPending
		}, why.Waiting, volume.ReasonWaitForFirstConsumer, "first Pod", "user"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := bound()
			c.change(&f)
			chain := why.Explain(f)
			got := chain.Answer()
			if got.State != c.state || got.Because.Reason != c.reason || !strings.Contains(got.Because.Message, c.text) || got.Because.Next != c.next {
				t.Errorf("got %+v", got)
			}
			var b strings.Builder
			if err := why.Render(&b, chain); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				if len([]rune(line)) > 81 {
					t.Errorf("line of more than 80 columns: %s", line)
				}
			}
		})
	}
}
