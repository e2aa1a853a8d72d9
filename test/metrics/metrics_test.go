package metrics

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

const rules = "../../deploy/prometheus/volplane.rules.yaml"

// promtool runs Prometheus' tool, and fails the test if it finds anything wrong.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is not there: make deps installs it")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestRules: Prometheus reads the rules.
func TestRules(t *testing.T) { promtool(t, "check", "rules", "--lint=all", "--lint-fatal", rules) }

// TestAlerts plays time series: each alert fires when it should, and not before.
func TestAlerts(t *testing.T) { promtool(t, "test", "rules", "testdata/alerts.yaml") }

// TestEveryAlertIsPlayed: the series play each alert, firing and silent.
func TestEveryAlertIsPlayed(t *testing.T) {
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	played, err := os.ReadFile("testdata/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	alerts := regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllStringSubmatch(string(text), -1)
	if len(alerts) < 10 {
		t.Fatalf("only %d alerts", len(alerts))
	}
	for _, a := range alerts {
		name := regexp.MustCompile(`(?m)^ *alertname: ` + a[1] + `$`)
		if n := len(name.FindAllString(string(played), -1)); n < 2 {
			t.Errorf("%s is played %d times, want it silent and firing", a[1], n)
		}
	}
	// An alert that fires has labels, a silent one has none.
	if !strings.Contains(string(played), "exp_alerts: []") {
		t.Error("nothing is silent")
	}
}
