package volumeusers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/decide/volumeusers"
	"volplane.dev/volplane/internal/testkit/golden"
)

const grace = time.Hour

// TestDecide plays what engines are seen to do, and what is decided about the last word of each step. Words are: take,
// fail and release ID, wait DURATION, and look, which only decides; "held", "free" or "unknown" is what the kernel says
// from then on.
func TestDecide(t *testing.T) {
	golden.Steps(t, "testdata/lives.txt", func(t *testing.T, play func(func(string) string)) {
		f := volumeusers.Facts{
			References: volumeusers.References{}, Held: volumeusers.No, Now: time.Unix(0, 0).UTC(), Grace: grace,
		}
		play(func(words string) string {
			for _, w := range strings.Split(words, ", ") {
				verb, id, _ := strings.Cut(w, " ")
				if err := happens(&f, verb, id); err != nil {
					t.Fatal(err)
				}
			}
			plan := volumeusers.Decide(f)
			if !f.Asks() && plan.Because != "" {
				t.Errorf("%s: the answer depends on what was not asked for", words)
			}
			said := fmt.Sprintf("%s, asks %v: %s\n%s", f.Held, f.Asks(), plan.References, plan.Because)
			if f.References = plan.References; f.References == nil {
				f.References = volumeusers.References{}
			}
			return strings.TrimSuffix(said, "\n")
		})
	})
}

// happens changes the facts as a word says.
func happens(f *volumeusers.Facts, verb, id string) (err error) {
	switch verb {
	case "take":
		f.References, err = f.References.Take(id, f.Now)
	case "fail":
		f.References = f.References.Fail(id, f.Now)
	case "release":
		f.References = f.References.Release(id, f.Now)
	case "wait":
		var d time.Duration
		d, err = time.ParseDuration(id)
		f.Now = f.Now.Add(d)
	case "held", "free", "unknown":
		f.Held = volumeusers.Held(verb)
	}
	return err
}

// TestAnnotation: what is written is read, and what cannot be read is no empty list.
func TestAnnotation(t *testing.T) {
	refs, err := volumeusers.References{}.Take("a", time.Unix(7, 9))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := volumeusers.Parse(refs.String()); err != nil || again.String() != refs.String() || !again.Used() {
		t.Errorf("%s is read as %s, %v", refs, again, err)
	}
	if none, err := volumeusers.Parse(""); err != nil || none == nil || len(none) != 0 || none.Used() {
		t.Errorf("nothing is read as %s, %v", none, err)
	}
	for _, bad := range []string{`["a"]`, `null`, `{`} {
		if got, err := volumeusers.Parse(bad); err == nil {
			t.Errorf("%s is read as %s", bad, got)
		}
	}
	if refs.Fail("a", time.Unix(8, 0)).Used() {
		t.Error("a try that has failed counts")
	}
}

// TestCounted: a few of many users are named, and no try that has failed.
func TestCounted(t *testing.T) {
	refs := volumeusers.References{"try": {}}
	for i, want := range []string{"", "a", "a, b", "a, b, c", "a, b, c, 1 more", "a, b, c, 2 more"} {
		if got := refs.Counted(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		refs[string(rune('a'+i))] = volumeusers.Reference{Count: 1}
	}
}

// TestLimit: an annotation has an end, but who is counted may always be counted again.
func TestLimit(t *testing.T) {
	refs, now := volumeusers.References{}, time.Unix(0, 0)
	for i := range volumeusers.Limit {
		var err error
		if refs, err = refs.Take(fmt.Sprintf("%064d", i), now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := refs.Take("one more", now); err == nil {
		t.Error("there is no limit")
	}
	if _, err := refs.Take(fmt.Sprintf("%064d", 1), now); err != nil {
		t.Error(err)
	}
	if n := len(refs.String()); n > 200<<10 {
		t.Errorf("the annotation has %d bytes", n)
	}
}
