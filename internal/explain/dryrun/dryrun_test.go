package dryrun_test

import (
	"strings"
	"testing"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/dryrun"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/volume"
)

func predictedRows() []row {
	return []row{
		{"a volume made by hand fits", "pvc/data", (*scene).Available},
		{"a volume made by hand is too small", "pvc/data", func(s *scene) { s.Available(); s.Wants("2Gi") }},
		{
			"a volume made by hand is named", "pvc/data",
			func(s *scene) { s.Available(); s.Claim.Spec.VolumeName = "v1" },
		},
		{"the default class is taken, and its driver asked", "pvc/data", func(s *scene) {
			s.Unbound()
			s.Claim.Spec.StorageClassName, s.Class.Annotations = nil, map[string]string{volume.AnnDefaultClass: "true"}
		}},
		{"a bound claim stays as it is", "pvc/data", func(*scene) {}},
	}
}

func TestForetold(t *testing.T) {
	var b strings.Builder
	for _, r := range predictedRows() {
		s := whytest.New()
		r.Change(s)
		told, ok := whytest.Ask(dryrun.Predict(s.All, "ns/data", "ns/other"), r.Ask)
		if !ok {
			t.Fatalf("%s: there is no %s", r.Name, r.Ask)
		}
		b.WriteString("# " + r.Name + "\n")
		if dryrun.Served(told) {
			b.WriteString("served by itself\n")
		}
		if err := chain.Render(&b, told, nil); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	if err := chain.Render(&b, dryrun.Refused("pvc/data", "exceeded quota: storage"), nil); err != nil {
		t.Fatal(err)
	}
	whytest.Equal(t, "dryrun.txt", b.String())
}

// row is one scene and the object in question.
type row whytest.Row

type scene = whytest.Scene
