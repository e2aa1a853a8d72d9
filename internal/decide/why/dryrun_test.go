package why_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/chain"
	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/volume"
)

// available has the volume be free for a claim without a volume, which wants no class.
func (s *scene) available() {
	s.unbound()
	s.all.Volumes = []*corev1.PersistentVolume{s.volume}
	s.volume.Spec.ClaimRef, s.volume.Spec.StorageClassName, s.volume.Status.Phase = nil, "", corev1.VolumeAvailable
	s.claim.Spec.StorageClassName = ptr.To("")
}

func foretoldRows() []row {
	return []row{
		{"a volume made by hand fits", "pvc/data", (*scene).available},
		{"a volume made by hand is too small", "pvc/data", func(s *scene) { s.available(); s.wants("2Gi") }},
		{"a volume made by hand is named", "pvc/data", func(s *scene) { s.available(); s.claim.Spec.VolumeName = "v1" }},
		{"the default class is taken, and its driver asked", "pvc/data", func(s *scene) {
			s.unbound()
			s.claim.Spec.StorageClassName, s.class.Annotations = nil, map[string]string{volume.AnnDefaultClass: "true"}
		}},
		{"a bound claim stays as it is", "pvc/data", func(*scene) {}},
	}
}

func TestForetold(t *testing.T) {
	var b strings.Builder
	for _, r := range foretoldRows() {
		s := newScene()
		r.change(s)
		told, ok := ask(why.Foretell(s.all, "ns/data", "ns/other"), r.ask)
		if !ok {
			t.Fatalf("%s: there is no %s", r.name, r.ask)
		}
		b.WriteString("# " + r.name + "\n")
		if why.Served(told) {
			b.WriteString("served by itself\n")
		}
		if err := chain.Render(&b, told); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	if err := chain.Render(&b, why.Refused("pvc/data", "exceeded quota: storage")); err != nil {
		t.Fatal(err)
	}
	equal(t, "dryrun.txt", b.String())
}
