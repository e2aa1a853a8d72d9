package volume

import (
	"strings"
	"testing"
)

// TestCauseOf: a cause is read as it was written, and a text that has none beside it by the codes in it.
func TestCauseOf(t *testing.T) {
	const text = "AttachVolume failed: rpc error: code = Unavailable desc = connection error: no such file"
	for _, c := range []struct {
		annotation, text string
		want             Cause
	}{
		{`{"code":"Internal"}`, text, Cause{Code: "Internal"}},
		{`{"object":"pv/v1","node":"n1"}`, "", Cause{Object: "pv/v1", Node: "n1"}},
		{"{}", text, Cause{}},
		{"", text, Cause{Code: "Unavailable", Gone: true}},
		{"", "disk on fire", Cause{}},
		{"nonsense", text, Cause{Code: "Unavailable", Gone: true}},
		{`{"code":"` + strings.Repeat("x", maxCause) + `"}`, "", Cause{}},
	} {
		if got := CauseOf(c.annotation, c.text); got != c.want {
			t.Errorf("%.80q beside %q is %+v, want %+v", c.annotation, c.text, got, c.want)
		}
	}
	for _, c := range []Cause{{}, {Code: "NotFound", Gone: true, Object: "pv/v1", Node: "n1"}} {
		if got := CauseOf(c.String(), ""); got != c {
			t.Errorf("%+v is read as %+v", c, got)
		}
	}
}

// TestMessageOf: the message of a warning does not include the actor that its text ends with.
func TestMessageOf(t *testing.T) {
	for _, a := range []Actor{User(), Administrator("n1"), Driver("d.example.com"), {}} {
		notes := map[string]string{AnnNext: a.String()}
		if got := MessageOf("disk on fire"+a.Suffix(), notes); got != "disk on fire" {
			t.Errorf("%v: %q", a, got)
		}
	}
	if got := MessageOf("of others (next: user)", nil); got != "of others (next: user)" {
		t.Errorf("%q", got)
	}
}
