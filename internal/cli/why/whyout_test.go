package why

import (
	"encoding/json"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/since"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// TestActorForPrograms: the output for programs has who acts next as a text and as a kind and a name, and neither if no
// one has to act.
func TestActorForPrograms(t *testing.T) {
	t.Parallel()
	told := func(s chain.State, next volume.Actor) any {
		return explanationOf(since.TimesOf(state.Objects{}), "ns", chain.Chain{Subject: "pvc/data", Links: []chain.Link{
			chain.New("pvc/data", s, volume.ReasonBinding, "m", next),
		}})
	}
	for name, c := range map[string]struct {
		told any
		want string
		// times is how often it occurs: for the object, for its answer, and for its only link.
		times int
	}{
		"a node":   {told(chain.Waiting, volume.NodeAgent("n1")), `"next":"node n1","actor":{"kind":"node","name":"n1"}`, 3},
		"the user": {told(chain.Problem, volume.User()), `"next":"user","actor":{"kind":"user"}`, 3},
		"no one":   {told(chain.OK, volume.Actor{}), `"next"`, 0},
	} {
		out, err := json.Marshal(c.told)
		actors := strings.Count(string(out), `"actor"`)
		if n := strings.Count(string(out), c.want); err != nil || n != c.times || actors != c.times {
			t.Errorf("%s: %s, %v", name, out, err)
		}
	}
}
