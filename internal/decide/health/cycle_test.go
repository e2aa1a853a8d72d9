package health

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// bound are the facts of a claim that has a volume, of which a driver said what is in conditions.
func bound(conditions ...corev1.VolumeHealthCondition) Facts {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", UID: "u"}}
	c.Spec.VolumeName, c.Status.Phase = "pv", corev1.ClaimBound
	if len(conditions) > 0 {
		c.Status.HealthStatus = &corev1.VolumeHealthStatus{HealthConditions: conditions}
	}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	v.Spec.ClaimRef, v.Spec.CSI = &corev1.ObjectReference{UID: "u"}, &corev1.CSIPersistentVolumeSource{Driver: "d"}
	return Facts{Claim: c, Volume: v}
}

// TestOfClaim: what a claim says of its volume after a cycle.
func TestOfClaim(t *testing.T) {
	was := ill("A", "")[0]
	told := func(f Facts, reports ...Report) Facts {
		f.Answer, f.Reports = Told, reports
		return f
	}
	absent := func(times int, canAsk bool) Facts {
		f := bound(was)
		f.Answer, f.Absences, f.CanAsk = Absent, times, canAsk
		return f
	}
	other := told(bound(), Report{Status: "DEGRADED", Reason: "A"})
	other.Volume.Spec.ClaimRef.UID = "other"
	unnamed := told(bound(), Report{Status: "DEGRADED", Reason: "A"})
	unnamed.Claim.Spec.VolumeName = "pv2"
	lost := told(bound(), Report{Status: "DEGRADED", Reason: "A"})
	lost.Claim.Status.Phase = corev1.ClaimLost
	gone := told(bound(), Report{Status: "DEGRADED", Reason: "A"})
	gone.Claim = nil
	missing, flex, free := told(bound()), told(bound(was)), told(bound(was))
	missing.Volume, flex.Volume.Spec.CSI, free.Volume.Spec.ClaimRef = nil, nil, nil
	silent := absent(1, true)
	silent.Answer = Silent
	healthy := bound()
	healthy.Answer = Absent
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  Facts
	}{
		{"it is ill", told(bound(), Report{Status: "DEGRADED", Reason: "A", Message: "a"})},
		{"it is still ill", told(bound(was), Report{Status: "DEGRADED", Reason: "A", Message: "in other words"})},
		{"it is ill in another way", told(bound(was), Report{Status: "INACCESSIBLE", Reason: "A"})},
		{"the driver says that nothing is wrong", told(bound(was))},
		{"the driver tells only what nobody knows", told(bound(was), Report{Status: "9", Reason: "A"})},
		{"it was well and is in no list", healthy},
		{"it is in the list no more", absent(0, false)},
		{"it is in the list no more, and the driver can be asked", absent(0, true)},
		{"the second list is without it, too", absent(1, false)},
		{"then it is not asked either", absent(1, true)},
		{"the driver does not answer", silent},
		{"the volume is another claim's", other},
		{"the claim has another volume", unnamed},
		{"the claim is lost", lost},
		{"the claim is gone", gone},
		{"the volume is gone", missing},
		{"no CSI driver serves the volume", flex},
		{"the volume is free", free},
	} {
		p := OfClaim(c.facts, metav1.Unix(2, 0))
		fmt.Fprintf(&out, "# %s\nask %v, absent %d\n%s", c.argues, p.Ask, p.Absences, golden.Change(t, nil, p.Health))
		if p.Because.Reason != "" {
			fmt.Fprintf(&out, "  %s: %s -> %s\n", p.Because.Reason, p.Because.Message, p.Because.Next)
		}
		out.WriteString("\n")
	}
	golden.Equal(t, "testdata/claims.txt", out.String())
}

// TestSecretsOf: all Secrets that a driver receives for a volume, each once.
func TestSecretsOf(t *testing.T) {
	ref := func(name string) *corev1.SecretReference { return &corev1.SecretReference{Namespace: "ns", Name: name} }
	v := bound().Volume
	v.Annotations = map[string]string{
		volume.AnnDeletionSecretName: "delete", volume.AnnDeletionSecretNamespace: "ns",
		volume.AnnModifySecretName: "modify", volume.AnnModifySecretNamespace: "ns",
	}
	s := v.Spec.CSI
	s.ControllerPublishSecretRef, s.NodeStageSecretRef, s.NodePublishSecretRef = ref("publish"), ref("stage"), ref("node")
	s.ControllerExpandSecretRef, s.NodeExpandSecretRef = ref("publish"), ref("grow")
	if got := fmt.Sprint(SecretsOf(v)); got != "[{delete ns} {grow ns} {modify ns} {node ns} {publish ns} {stage ns}]" {
		t.Error(got)
	}
	if got := SecretsOf(bound().Volume); len(got) > 0 {
		t.Error(got)
	}
}

// TestHide: secrets are hidden, and what may be one is not told.
func TestHide(t *testing.T) {
	said := []Report{{Status: "DEGRADED", Reason: "Bad_hunter22hunter22", Message: "key=hunter22hunter22"}}
	secret := []map[string]string{nil, {"key": "hunter22hunter22"}}
	hidden := Hide(said, secret, nil)
	if hidden[0] != (Report{Status: "DEGRADED", Reason: "Bad_***", Message: "key=***"}) {
		t.Errorf("%+v", hidden)
	}
	unread := fmt.Sprintf("%+v", Hide(said, nil, errors.New("no such Secret")))
	if strings.Contains(unread, "hunter") || !strings.Contains(unread, "no such Secret") ||
		!strings.Contains(unread, Unspecified) {
		t.Error(unread)
	}
	if said[0].Message != "key=hunter22hunter22" {
		t.Error("the argument was changed")
	}
}
