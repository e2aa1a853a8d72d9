package revision

import "testing"

func TestWith(t *testing.T) {
	for revision, want := range map[string]string{"unknown": "v1", "v1": "v1", "4f1e": "v1, revision 4f1e"} {
		if got := with("v1", revision); got != want {
			t.Errorf("revision %s: %q, want %q", revision, got, want)
		}
	}
	if Of() != "unknown" || With("v1") != "v1" {
		t.Errorf("a build that does not say it has the revision %q", Of())
	}
}
