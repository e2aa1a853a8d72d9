package volume

import (
	"testing"

	"google.golang.org/grpc/codes"
)

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

// TestAnswerIn: who acts next after an error in a text follows from the code of the driver's own answer, not from
// codes that it quotes.
func TestAnswerIn(t *testing.T) {
	for text, want := range map[string]string{
		"NotFound: no such volume":                                             "user",
		"rpc error: code = OutOfRange desc = too large":                        "user",
		"driver d did not create a volume: InvalidArgument: Internal: no":      "user",
		"Internal: on fire":                                                    "d",
		"Internal: backend: NotFound: pool p1 is rebuilding":                   "d",
		"Unavailable: upstream answered ResourceExhausted: try later":          "d",
		"rpc error: code = Aborted desc = rpc error: code = NotFound desc = x": "d",
		`Unknown: read secret ns/login: secrets "login" not found`:             "user",
		`error getting secrets "login": it has no data`:                        "d",
		`volumes "login" not found`:                                            "d",

		"Internal: (what the driver said is not shown, because it may hold a secret: " + `secrets "login" not found)`: "d",
	} {
		if got := AnswerIn(text).Next(Driver("d")); got.String() != want {
			t.Errorf("after %q acts %q, want %q", text, got, want)
		}
	}
}

// TestNext: the user acts next after the codes for which the CSI specification asks for a change before the call is
// repeated.
func TestNext(t *testing.T) {
	for n := range codes.Unauthenticated + 1 {
		if got := Codes()[n]; got != n.String() {
			t.Errorf("code %d is called %q, want %q", n, got, n)
		}
		want := Driver("d")
		switch n {
		case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.ResourceExhausted,
			codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
			want = User()
		default:
		}
		if got := (Answer{Code: n.String()}).Next(Driver("d")); got != want {
			t.Errorf("after %s acts %q, want %q", n, got, want)
		}
	}
	for _, a := range []Answer{{Code: "Internal", Missing: "no Secret"}, {NoSecret: true}} {
		if got := a.Next(Driver("d")); got != User() {
			t.Errorf("after %+v acts %q", a, got)
		}
	}
	if got := (Answer{Code: "Internal"}).Next(Actor{}); got != User() {
		t.Errorf("%q acts when nobody repeats the call", got)
	}
}
