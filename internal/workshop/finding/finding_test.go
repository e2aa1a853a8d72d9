package finding

import (
	"encoding/json"
	"testing"
)

// TestFindingIsOneShape: programs read what lint, install and the doctor print by
// these keys.
func TestFindingIsOneShape(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]Finding{
		`{"check":"init","level":"pass","message":"well"}`: {
			Check: "init", Level: Pass, Message: "well",
		},
		`{"check":"link","level":"warn","path":"/x","message":"leads away","next":"remove"}`: {
			Check: "link", Level: Warn, Path: "/x", Message: "leads away", Next: "remove",
		},
		`{"check":"data","level":"fail","message":"gone","next":"driver's author: keep it","breaks":["a","b"]}`: {
			Check: "data", Level: Fail, Message: "gone", Next: Author.Should("keep it"), Breaks: []Host{"a", "b"},
		},
	} {
		if got, err := json.Marshal(f); err != nil || string(got) != want {
			t.Errorf("%s, want %s: %v", got, want, err)
		}
	}
}

// TestWorst of findings, in whatever order they come.
func TestWorst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want Level
		of   []Level
	}{
		{Pass, nil},
		{Pass, []Level{Pass, Pass}},
		{Warn, []Level{Pass, Warn, Pass}},
		{Fail, []Level{Warn, Fail, Warn, Pass}},
		{Fail, []Level{Fail}},
	} {
		var all []Finding
		for _, l := range c.of {
			all = append(all, Finding{Level: l})
		}
		if got := Worst(all); got != c.want {
			t.Errorf("worst of %v: %s, want %s", c.of, got, c.want)
		}
	}
}
