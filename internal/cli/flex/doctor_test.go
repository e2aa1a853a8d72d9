package flex

import (
	"strings"
	"testing"

	"volplane.dev/volplane/internal/cli/shell"
	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/doctor"
	"volplane.dev/volplane/internal/workshop/finding"
)

// TestDiagnosisEndsWithTheVerdict: the last lines say where the driver works, and what keeps it from
// working; of an examination that was interrupted they say nothing.
func TestDiagnosisEndsWithTheVerdict(t *testing.T) {
	t.Parallel()
	noise := finding.Finding{
		Check: "standard-error", Level: finding.Fail, Message: "noise", Next: finding.Author.Should("be quiet"),
		Breaks: []finding.Host{decide.Kubernetes},
	}
	data := finding.Finding{Check: "data", Level: finding.Fail, Message: "gone", Breaks: decide.Hosts()}
	const yes, here = "works in Kubernetes: yes\n", "works here (volplane): yes\n"
	for want, findings := range map[string][]finding.Finding{
		yes + here: {{Check: "a", Level: finding.Warn}},
		"works in Kubernetes: no (standard-error)\n" + here:                                  {noise},
		"works in Kubernetes: no (standard-error, data)\nworks here (volplane): no (data)\n": {noise, data},
	} {
		var out strings.Builder
		works := decide.WorksIn(findings)
		d := doctor.Report{Driver: "example.com/files", Findings: findings, Works: &works}
		s := &shell.Shell{Streams: shell.Streams{Out: &out}}
		if err := printDiagnosis(s, d); err != nil || !strings.HasSuffix(out.String(), "\n"+want) {
			t.Errorf("%v, it ends with\n%s\nwant\n%s", err, out.String(), want)
		}
		out.Reset()
		d.Works = nil
		if err := printDiagnosis(s, d); err != nil || strings.Contains(out.String(), "works") {
			t.Errorf("interrupted: %v, %s", err, out.String())
		}
	}
}
