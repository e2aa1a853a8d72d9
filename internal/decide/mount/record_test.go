package mount

import (
	"strings"
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

// TestAttempted: a driver is asked about a volume that it was asked to mount, and not about one that it takes away.
func TestAttempted(t *testing.T) {
	at := func(path string, p Phase) Target { return Target{Path: path, Phase: p} }
	for name, c := range map[string]struct {
		record Record
		want   string
		ok     bool
	}{
		"staging failed":            {Record{}, "", true},
		"staging may have failed":   {Record{Stage: Staging}, "", true},
		"publishing failed":         {Record{Stage: Staged}, "", true},
		"publishing may have":       {Record{Stage: Staged, Targets: []Target{at("/a", Publishing)}}, "/a", true},
		"it is being unpublished":   {Record{Targets: []Target{at("/a", Publishing), at("/b", Unpublishing)}}, "", false},
		"it is being unstaged":      {Record{Stage: Unstaging}, "", false},
		"it is staged and wanted":   {Record{Stage: Staged, Targets: []Target{at("/a", Published)}}, "", true},
		"nothing is known about it": {Record{Targets: []Target{at("/a", "")}}, "", true},
	} {
		if path, ok := c.record.Attempted(); path != c.want || ok != c.ok {
			t.Errorf("%s: %q, %v", name, path, ok)
		}
	}
}

// TestAddSecrets: a record names the Secrets of every object by which its volume was mounted, and is no longer in doubt
// about them when it has those of its own object.
func TestAddSecrets(t *testing.T) {
	ref := func(name string) *corev1.SecretReference { return &corev1.SecretReference{Namespace: "ns", Name: name} }
	pv := &corev1.PersistentVolume{}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: ref("stage"), NodeExpandSecretRef: ref("grow")}
	pv.Name = "pv"
	twin := pv.DeepCopy()
	twin.Name, twin.Spec.CSI.NodeStageSecretRef, twin.Spec.CSI.NodePublishSecretRef = "twin", ref("other"), ref("publish")
	r := Record{Volume: "pv", SecretsUnknown: true}
	for range 2 {
		r.AddSecrets(twin)
	}
	if !r.SecretsUnknown {
		t.Error("what the record's own object names is known by another one")
	}
	for range 2 {
		r.AddSecrets(pv)
	}
	var got []string
	for _, s := range r.Secrets() {
		got = append(got, s.Name)
	}
	if names := strings.Join(got, " "); r.SecretsUnknown || names != "stage other publish grow" {
		t.Errorf("unknown %v, %s", r.SecretsUnknown, names)
	}
}
