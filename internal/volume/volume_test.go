package volume

import "testing"

func TestSanitizedDriver(t *testing.T) {
	for in, want := range map[string]string{
		"":                   "",
		"local.volplane.dev": "local-volplane-dev",
		"a/b_c":              "a-b-c",
		"ends.":              "ends-X",
		"é":                  "--X",
		"plain-1":            "plain-1",
	} {
		if got := SanitizedDriver(in); got != want {
			t.Errorf("SanitizedDriver(%q) = %q, want %q", in, got, want)
		}
	}
	if got, want := AttacherFinalizer("a.b"), "external-attacher/a-b"; got != want {
		t.Errorf("AttacherFinalizer: %q, want %q", got, want)
	}
	if got, want := UniqueName("d", "h^x"), "kubernetes.io/csi/d^h^x"; got != want {
		t.Errorf("UniqueName: %q, want %q", got, want)
	}
}

func TestOutcomeStrings(t *testing.T) {
	for o, want := range map[Outcome]string{Done: "Done", Failed: "Failed", Unknown: "Unknown", Outcome(9): "Unknown"} {
		if o.String() != want {
			t.Errorf("Outcome(%d) = %q, want %q", o, o, want)
		}
	}
}

func TestDriverGone(t *testing.T) {
	for message, want := range map[string]bool{
		`Unavailable: connection error: desc = "transport: Error while dialing: dial unix /s: connect: no such file or directory"`: true,
		"rpc error: code = Unavailable desc = error reading from " +
			"server: EOF": true,
		"rpc error: code = Unavailable desc = transport is closing": true,
		"dial unix /s: connect: connection refused":                 true,
		"rpc error: code = Unavailable desc = the array restarts":   false,
	} {
		if got := DriverGone(message); got != want {
			t.Errorf("DriverGone(%q) = %v", message, got)
		}
	}
}

func TestNextAfter(t *testing.T) {
	for message, want := range map[string]string{
		"NotFound: no such volume":                      "user",
		"rpc error: code = OutOfRange desc = too large": "user",
		"Internal: on fire":                             "d",
		`secrets "login" not found`:                     "user",
		`error getting secrets "login": it has no data`: "d",
		`volumes "login" not found`:                     "d",
		"Internal: (what the driver said is not shown, because it may hold a secret: " + `secrets "login" not found)`: "d",
	} {
		if got := NextAfter(message, "d"); got != want {
			t.Errorf("NextAfter(%q) = %q, want %q", message, got, want)
		}
	}
	if got := NextAfter("Internal: on fire", ""); got != "user" {
		t.Errorf("next is %q when nobody repeats it", got)
	}
}
