package mount

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestServes(t *testing.T) {
	for name, c := range map[string]struct {
		target *Target
		host   string
		want   bool
	}{
		"nothing":                 {},
		"being published":         {&Target{Phase: Publishing}, "", false},
		"published":               {&Target{Phase: Published}, "", true},
		"not at the host's path":  {&Target{Phase: Published}, "/h", false},
		"being bound":             {&Target{Phase: Published, HostPhase: Binding, HostPath: "/h"}, "/h", false},
		"bound":                   {&Target{Phase: Published, HostPhase: Bound, HostPath: "/h"}, "/h", true},
		"bound elsewhere":         {&Target{Phase: Published, HostPhase: Bound, HostPath: "/g"}, "/h", false},
		"bound, being unmounted":  {&Target{Phase: Unpublishing, HostPhase: Bound, HostPath: "/h"}, "/h", false},
		"bound, and nobody asked": {&Target{Phase: Published, HostPhase: Bound, HostPath: "/h"}, "", true},
	} {
		if got := c.target.Serves(c.host); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestSetSecrets: a record names the Secrets that its volume's object names now, and is
// no longer in doubt about them.
func TestSetSecrets(t *testing.T) {
	ref := func(name string) *corev1.SecretReference { return &corev1.SecretReference{Namespace: "ns", Name: name} }
	pv := &corev1.PersistentVolume{}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: ref("stage"), NodeExpandSecretRef: ref("grow")}
	r := Record{SecretsUnknown: true, PublishSecret: &SecretRef{Name: "old"}}
	r.SetSecrets(pv)
	if r.SecretsUnknown || r.PublishSecret != nil || *r.StageSecret != (SecretRef{"ns", "stage"}) ||
		*r.GrowSecret != (SecretRef{"ns", "grow"}) {
		t.Errorf("%+v", r)
	}
}
