package provision

import "testing"

// TestRefusal: the codes of the table in docs/provisioning.md.
func TestRefusal(t *testing.T) {
	all := []string{
		"Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
		"ResourceExhausted",
		"FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss",
		"Unauthenticated", "Code(42)", "",
	}
	always := map[string]bool{"InvalidArgument": true, "NotFound": true, "OutOfRange": true, "ResourceExhausted": true}
	first := map[string]bool{
		"AlreadyExists": true, "Unimplemented": true, "PermissionDenied": true, "Unauthenticated": true,
	}
	for _, code := range all {
		for _, c := range []struct {
			refusal Refusal
			want    bool
		}{
			{Refusal{Code: code, First: true, Whole: true}, always[code] || first[code]},
			{Refusal{Code: code, Whole: true}, always[code]},
			{Refusal{Code: code}, false},
		} {
			if got := c.refusal.NothingMade(); got != c.want {
				t.Errorf("%+v: nothing made is %v, want %v", c.refusal, got, c.want)
			}
		}
	}
}
