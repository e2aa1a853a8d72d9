package redact

import "testing"

func TestLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                       "",
		"no room":                "no room",
		" a\n\n b\tc\r\n":        "a b c",
		"\x1b[2J\x00\xffx\u202e": "[2J ?x",
		"0123456789":             "0123456789",
		"01234567890":            "0123456789...",
		"012345678\u00e9":        "012345678...",
	} {
		if got := Line(in, 10); got != want {
			t.Errorf("Line(%q) = %q, want %q", in, got, want)
		}
	}
	if got, want := Printable("\tat  x\x1b\xff"), " at  x ?"; got != want {
		t.Errorf("Printable: %q, want %q", got, want)
	}
}
