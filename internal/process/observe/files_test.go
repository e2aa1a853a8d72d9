package observe

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/testkit/golden"
)

const repository = "../../.."

// expressions returns the expressions of the rules, by the name of the alert, and of the dashboard, by the title of the
// panel.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for i, r := range rules(t) {
		out[fmt.Sprint(r.Alert, " ", i)] = r.Expr
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, "deploy/grafana/volplane.json"), &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for i, target := range p.Targets {
			out[fmt.Sprint(p.Title, " ", i)] = target.Expr
		}
	}
	return out
}

type rule struct {
	Alert, Expr string
	Annotations map[string]string
}

func rules(t *testing.T) []rule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(read(t, "deploy/prometheus/volplane.rules.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	var out []rule
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	return out
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, path))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// names returns the names of metrics and of labels in an expression: all words but functions, operators and durations.
func names(expr string) (metrics, labels []string) {
	matcher := regexp.MustCompile(`\{([^}]*)\}`)
	for _, m := range matcher.FindAllStringSubmatch(expr, -1) {
		for _, l := range regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`).FindAllStringSubmatch(m[1], -1) {
			labels = append(labels, l[1])
		}
	}
	expr = matcher.ReplaceAllString(expr, "")
	grouping := regexp.MustCompile(`\b(?:by|without|on|ignoring)\s*\(([^)]*)\)`)
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	expr = regexp.MustCompile(`\[[^\]]*\]|"[^"]*"`).ReplaceAllString(grouping.ReplaceAllString(expr, ""), "")
	for _, m := range regexp.MustCompile(`([a-zA-Z_]\w*)\s*(\()?`).FindAllStringSubmatch(expr, -1) {
		if m[2] == "" && !slices.Contains([]string{"and", "or", "unless", "sum", "max", "min"}, m[1]) {
			metrics = append(metrics, m[1])
		}
	}
	return metrics, labels
}

// TestExpressions: each metric that the rules and the dashboard name is gathered, and so are the labels.
func TestExpressions(t *testing.T) {
	known := map[string][]string{}
	for _, f := range gathered(t, full()) {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		known[f.GetName()] = labels
		if f.GetMetric()[0].GetHistogram() != nil {
			for _, end := range []string{"_bucket", "_sum", "_count"} {
				known[f.GetName()+end] = append(labels, "le")
			}
		}
	}
	all := expressions(t)
	for where, expr := range all {
		metrics, labels := names(expr)
		if len(metrics) == 0 {
			t.Errorf("%s: no metric in %s", where, expr)
		}
		for _, m := range metrics {
			has, ok := known[m]
			if !ok {
				t.Errorf("%s: %s is not gathered", where, m)
			}
			for _, l := range labels {
				if !slices.Contains(has, l) {
					t.Errorf("%s: %s has no label %s", where, m, l)
				}
			}
		}
	}
	if len(all) < 20 {
		t.Errorf("only %d expressions were found", len(all))
	}
}

// TestNamesSeesMistakes: a name that is not there is found wherever it is.
func TestNamesSeesMistakes(t *testing.T) {
	metrics, labels := names(`sum by (le, wrong) (rate(gone_count{driver=~"x", code!="y"}[5m])) / max(other) > 0.2`)
	if !slices.Equal(metrics, []string{"gone_count", "other"}) ||
		!slices.Equal(labels, []string{"driver", "code", "le", "wrong"}) {
		t.Errorf("found %q and %q", metrics, labels)
	}
}

// TestRunbooks: each alert has a section that says what to do.
func TestRunbooks(t *testing.T) {
	text := string(read(t, "docs/metrics.md"))
	for _, r := range rules(t) {
		want := "https://volplane.dev/volplane/docs/metrics.md#" + strings.ToLower(r.Alert)
		if r.Annotations["runbook_url"] != want || !strings.Contains(text, "\n### "+r.Alert+"\n") {
			t.Errorf("%s has the runbook %s", r.Alert, r.Annotations["runbook_url"])
		}
	}
}

// TestDashboardIsPortable: the dashboard names no data source of an installation.
func TestDashboardIsPortable(t *testing.T) {
	var board map[string]any
	if err := json.Unmarshal(read(t, "deploy/grafana/volplane.json"), &board); err != nil {
		t.Fatal(err)
	}
	if id, ok := board["id"]; !ok || id != nil || board["uid"] != "volplane" || board["__inputs"] != nil {
		t.Errorf("id %v, uid %v, inputs %v", id, board["uid"], board["__inputs"])
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if uid, ok := v["datasource"].(map[string]any); ok && uid["uid"] != "${datasource}" {
				t.Errorf("the data source is %v", uid)
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(board)
}

// TestDocument: docs/metrics.md lists all metrics.
func TestDocument(t *testing.T) {
	const begin, end = "writes this -->\n", "<!-- end of metrics -->"
	text := string(read(t, "docs/metrics.md"))
	before, rest, found := strings.Cut(text, begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatal("docs/metrics.md has no place for the table")
	}
	var b strings.Builder
	b.WriteString("| Metric | Type | Labels | Meaning | Served by |\n|---|---|---|---|---|\n")
	for _, f := range Families() {
		labels := ""
		if len(f.Labels) > 0 {
			labels = "`" + strings.Join(f.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.Name, f.Type, labels, f.Help, f.From)
	}
	golden.Equal(t, filepath.Join(repository, "docs", "metrics.md"), before+begin+b.String()+end+after)
}
