package volume

import "strings"

// NextAfter returns who has to act after a failure: a person when the driver says
// that the request itself cannot be served, and otherwise the one who repeats it;
// a person, too, when nobody does, or when a Secret is not there. The codes are CSI's; a message has "Code: text"
// or gRPC's own form.
func NextAfter(message, repeats string) string {
	for _, code := range []string{
		"InvalidArgument", "OutOfRange", "NotFound", "AlreadyExists", "PermissionDenied", "Unauthenticated",
		"FailedPrecondition", "ResourceExhausted", "Unimplemented",
	} {
		if strings.Contains(message, code+": ") || strings.Contains(message, "code = "+code+" ") {
			return "user"
		}
	}
	if repeats == "" || strings.Contains(message, `secrets "`) && strings.Contains(message, "not found") {
		return "user"
	}
	return repeats
}

// DriverGone says whether a call failed because nobody serves the driver's socket:
// gRPC's words for a connection that cannot be made, or that was lost.
func DriverGone(message string) bool {
	for _, words := range []string{
		"connection error: ", "error reading from server: ", "transport is closing", "connection refused",
	} {
		if strings.Contains(message, words) {
			return true
		}
	}
	return false
}
