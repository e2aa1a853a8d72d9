package chain_test

import (
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func links() (ok, waits, problem chain.Link) {
	because := volume.Because{Reason: volume.ReasonAttaching, Message: "the driver is asked.", Next: volume.Driver("d")}
	return chain.New("pvc/data", chain.OK, volume.ReasonBound, "1Gi", volume.Actor{}), chain.FromCondition("attachment/n1",
			volume.Condition{Because: because}), chain.New("pod/web", chain.Problem, volume.ReasonFailedMount,
			"no space is left on the device that is to hold what the driver has to write before it can mount", volume.User())
}

// TestRender: the headline is the first problem, or else the first that waits, or else the last link.
func TestRender(t *testing.T) {
	ok, waits, problem := links()
	var b strings.Builder
	for _, c := range []chain.Chain{
		{Subject: "pvc/data", Links: []chain.Link{ok}},
		{Subject: "pvc/data", Links: []chain.Link{ok, waits}},
		{Subject: "pvc/data", Links: []chain.Link{ok, waits, problem}},
		chain.Chain{Subject: "pvc/data", Links: []chain.Link{problem, ok}}.Under("pod/web"),
	} {
		if err := chain.Render(&b, c, nil); err != nil {
			t.Fatal(err)
		}
		if c.Healthy() != (len(c.Links) == 1) {
			t.Errorf("healthy: %v", c)
		}
		b.WriteString("\n")
	}
	timed := chain.Chain{Subject: "pvc/data", Links: []chain.Link{ok, waits}}
	_ = chain.Render(&b, timed, func(l chain.Link) string { return map[bool]string{true: "since noon"}[l == waits] })
	b.WriteString("\n")
	chain.WriteHeadline(&b, chain.Chain{Subject: "pod/web", Links: []chain.Link{problem}}, 80)
	chain.Paragraph(&b, problem.Because.Message, 80)
	golden.Equal(t, "testdata/render.txt", b.String())
}

// TestTell: the link of a decision is OK if no actor has to act, and a problem if it is stuck.
func TestTell(t *testing.T) {
	for want, c := range map[chain.State]volume.Condition{
		chain.OK: {}, chain.Waiting: {Because: volume.Because{Next: volume.Driver("d")}}, chain.Problem: {Stuck: true},
	} {
		if got := chain.FromCondition("pv/v1", c); got.State != want || got.Subject != "pv/v1" {
			t.Errorf("%+v is %+v, want %s", c, got, want)
		}
	}
}

func TestWords(t *testing.T) {
	east := time.FixedZone("east", 3600)
	for got, want := range map[string]string{
		chain.Moment(time.Date(2026, 1, 2, 3, 4, 5, 6, east)):                "2026-01-02 02:04:05 UTC",
		chain.OnNode("n1", volume.Because{Message: "no room"}).Message:       "on node n1: no room",
		chain.OnNode("n1", volume.Because{Message: "no room on n1"}).Message: "no room on n1",
		strings.Join(chain.Few([]string{"a", "b", "c"}), " "):                "a b c",
		strings.Join(chain.Few([]string{"a", "b", "c", "d", "e"}), " "):      "a b c and 2 more",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
