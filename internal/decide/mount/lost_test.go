package mount

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestNotBack: what a step that is not done means for Pods that had the volume, and for others.
func TestNotBack(t *testing.T) {
	golden.Play(t, "testdata/answers/lost.txt", func(t *testing.T, given string) string {
		var told []string
		known, steps, _ := strings.Cut(given, "step ")
		f := facts(t, known)
		for _, step := range strings.Split("step "+steps, "\n") {
			a := Action{Verb: Verb(strings.Fields(step)[1])}
			if words := strings.Fields(step); len(words) > 2 {
				a.Path = words[2]
			}
			b := f.NotBack(a, StepFailed(a.Verb, "d", "n", Failure{Answer: volume.Answer{Text: "the cause"}}))
			told = append(told, fmt.Sprintf("%s %s: %s: %s -> %s", a.Verb, a.Path, b.Reason, b.Message, b.Next))
		}
		return strings.Join(told, "\n")
	})
	f := Facts{Record: &Record{Lost: map[string]Loss{"/p/a": Died}}, Wanted: []Consumer{{Path: "/p/a"}}}
	if b := f.NotBack(Action{Verb: Bind, Path: "/p/a"}, volume.Because{}); b.Reason != "" {
		t.Error("a step that delays nobody is the reason", b)
	}
}

// TestRegain: a loss is forgotten when its Pod has the volume as it asks, and the copy of a record has its own losses.
func TestRegain(t *testing.T) {
	r := &Record{Lost: map[string]Loss{"/a": Died, "/b": Undone, "/c": Died}, Targets: []Target{
		{Path: "/a", Phase: Published}, {Path: "/b", Phase: Publishing}, {Path: "/c", Phase: Published},
	}}
	before := r.Clone()
	r.Regain([]Consumer{{Path: "/a"}, {Path: "/b"}, {Path: "/c", HostPath: "/h"}})
	if diff := cmp.Diff(map[string]Loss{"/b": Undone, "/c": Died}, r.Lost); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(before.Lost) != 3 {
		t.Error("the copy has changed: ", before.Lost)
	}
	(*Record)(nil).Regain(nil)
}
