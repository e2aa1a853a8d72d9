package apiserver_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// stage returns the words for a gate's stage and default.
func stage(spec featuregate.FeatureSpec) string {
	words := map[string]string{"": "GA", "ALPHA": "alpha", "BETA": "beta", "DEPRECATED": "deprecated"}
	if spec.Default {
		return words[string(spec.PreRelease)] + ", on"
	}
	return words[string(spec.PreRelease)] + ", off"
}

// TestFeatureGatesAreListed: each feature gate of Kubernetes is either in docs/features.md, with its stage, or in the
// list of those that do not concern volumes: gates of a new version have to be reviewed.
func TestFeatureGatesAreListed(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/features.md")
	if err != nil {
		t.Fatal(err)
	}
	others, err := os.ReadFile("testdata/othergates.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n## Feature gates of Kubernetes\n")
	table, _, _ = strings.Cut(table, "\n## ")
	listed := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]+) \\|").FindAllStringSubmatch(table, -1) {
		listed[m[1]] = m[2]
	}
	elsewhere := strings.Fields(string(others))
	for name, spec := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		said, here := listed[string(name)]
		delete(listed, string(name))
		if want := stage(spec); here && said != want {
			t.Errorf("docs/features.md says that %s is %s, and it is %s", name, said, want)
		}
		if there := slices.Contains(elsewhere, string(name)); here == there {
			t.Errorf("feature gate %s must be in docs/features.md or in testdata/othergates.txt", name)
		}
		elsewhere = slices.DeleteFunc(elsewhere, func(other string) bool { return other == string(name) })
	}
	for name := range listed {
		t.Errorf("docs/features.md has the feature gate %s, which Kubernetes does not have", name)
	}
	if len(elsewhere) > 0 {
		t.Errorf("testdata/othergates.txt has feature gates that Kubernetes does not have: %q", elsewhere)
	}
}
