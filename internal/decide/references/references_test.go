package references_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/decide/references"
	"volplane.dev/volplane/internal/testkit/golden"
)

const grace = time.Hour

// lives are what engines are seen to do. Words are: take, fail and release ID, wait DURATION, and look, which only
// decides; a word "held", "free" or "unknown" changes what the kernel says from then on.
func lives() [][2]string {
	return [][2]string{
		{"one container", "take a, held, wait 1h, look, free, release a"},
		{"two containers", "take a, take b, held, release a, free, release b"},
		{"a file is copied from a running container", "take a, held, take a, release a, free, release a"},
		{
			"docker was killed and its containers died; the new one has an id of its own",
			"take a, held, wait 2h, free, take b, look, held, wait 1m, look, free, release b",
		},
		{"docker was killed and nobody starts its container again", "take a, held, wait 2h, free, look"},
		{"docker was killed with live-restore, and unmounts by the old id", "take a, held, wait 1h, look, free, release a"},
		{
			"the plugin was down at the stop, and docker mounts by the same id",
			"take a, held, wait 2h, free, take a, look, held, release a, wait 2h, free, look",
		},
		{"a container that starts slowly", "take a, wait 1h, look, wait 1s, look"},
		{"podman's first try was too short", "take p, fail p, wait 5s, look, take p, held, free, release p"},
		{"a try that nobody repeats", "take p, fail p, wait 2m, look, wait 1s, look"},
		{"a try fails beside a container", "take a, held, take b, fail b, wait 3m, look, free, release a"},
		{"an unmount that nobody has asked for", "take a, release b, look"},
		{"a failure of what nobody has asked for", "fail a, look"},
		{"unmounted while it is mounted for somebody", "take a, held, release a, wait 1h, look, free, look"},
		{"unmounted while the kernel cannot be asked", "take a, unknown, release a, wait 3m, look, free, look"},
		{"the kernel cannot be asked", "take a, unknown, wait 2h, look"},
		{"the clock was set back", "take a, wait -2h, look"},
		{"nobody was ever there", "look"},
	}
}

func TestDecide(t *testing.T) {
	var out strings.Builder
	for _, l := range lives() {
		fmt.Fprintf(&out, "%s\n", l[0])
		play(t, &out, strings.Split(l[1], ", "))
		fmt.Fprintln(&out)
	}
	golden.Equal(t, "testdata/lives.txt", out.String())
}

func play(t *testing.T, out *strings.Builder, words []string) {
	t.Helper()
	f := references.Facts{
		References: references.References{}, Held: references.No, Now: time.Unix(0, 0).UTC(), Grace: grace,
	}
	for _, w := range words {
		verb, id, _ := strings.Cut(w, " ")
		if err := happens(&f, verb, id); err != nil {
			t.Fatal(err)
		}
		if verb != "release" && verb != "look" {
			continue
		}
		plan := references.Decide(f)
		if !f.Asks() && plan.Because != "" {
			t.Errorf("%s: the answer depends on what was not asked for", w)
		}
		fmt.Fprintf(out, "  %-10s %-8s asks %-5v  %s", w, f.Held, f.Asks(), plan.References)
		if plan.Because != "" {
			fmt.Fprintf(out, "\n             %s", plan.Because)
		}
		fmt.Fprintln(out)
		if f.References = plan.References; f.References == nil {
			f.References = references.References{}
		}
	}
}

// happens changes the facts as a word says.
func happens(f *references.Facts, verb, id string) (err error) {
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
		f.Held = references.Held(verb)
	}
	return err
}

// TestAnnotation: what is written is read, and what cannot be read is no empty list.
func TestAnnotation(t *testing.T) {
	refs, err := references.References{}.Take("a", time.Unix(7, 9))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := references.Parse(refs.String()); err != nil || again.String() != refs.String() || !again.Used() {
		t.Errorf("%s is read as %s, %v", refs, again, err)
	}
	if none, err := references.Parse(""); err != nil || len(none) != 0 || none.Used() {
		t.Errorf("nothing is read as %s, %v", none, err)
	}
	for _, bad := range []string{`["a"]`, `null`, `{`} {
		if got, err := references.Parse(bad); err == nil {
			t.Errorf("%s is read as %s", bad, got)
		}
	}
	if refs.Fail("a", time.Unix(8, 0)).Used() {
		t.Error("a try that has failed counts")
	}
}

// TestLimit: an annotation has an end, but who is counted may always be counted again.
func TestLimit(t *testing.T) {
	refs, now := references.References{}, time.Unix(0, 0)
	for i := range references.Limit {
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
