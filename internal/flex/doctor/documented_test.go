package doctor

import (
	"os"
	"regexp"
	"strings"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/workshop/finding"
)

// row is what the documentation says about a check.
type row struct{ fails, warns string }

// rows returns the table of docs/flex.md.
func rows(t *testing.T) map[string]row {
	t.Helper()
	text, err := os.ReadFile("../../../docs/flex.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]row{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		const columns = 5
		if len(cells) != columns || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, name := range regexp.MustCompile("`([a-z0-9-]+)`").FindAllStringSubmatch(cells[1], -1) {
			all[name[1]] = row{strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])}
		}
	}
	return all
}

// documented: the table has for each check the levels that it may have, and the hosts that it breaks.
func documented(t *testing.T, r Report) {
	t.Helper()
	all := rows(t)
	for _, f := range r.Findings {
		is, found := all[f.Check]
		if !found || f.Level == finding.Fail && is.fails == "" || f.Level == finding.Warn && is.warns == "" {
			t.Errorf("docs/flex.md does not say that %s may be %s: %+v", f.Check, f.Level, is)
		}
		for _, host := range f.Breaks {
			word := map[finding.Host]string{decide.Kubernetes: "Kubernetes", decide.Volplane: "here"}[host]
			if !strings.Contains(is.fails, word) {
				t.Errorf("docs/flex.md does not say that %s breaks %s: %+v", f.Check, host, is)
			}
		}
	}
}

// TestDocumented: the table is found, and has each check once that cannot be provoked here.
func TestDocumented(t *testing.T) {
	t.Parallel()
	if all := rows(t); len(all) < 50 || all["expandfs"].warns == "" || all["attach"].fails == "" {
		t.Errorf("%d rows: %+v", len(all), all)
	}
}
