package volume

import "strings"

// NextAfter returns who has to act after a failure: a person when the driver says
// that the request itself cannot be served, and otherwise the one who repeats it;
// a person, too, when nobody does, or when a Secret is not there. The codes are
// CSI's; a message has "Code: text" or gRPC's own form.
func NextAfter(message, repeats string) string {
	for _, code := range []string{
		"InvalidArgument", "OutOfRange", "NotFound", "AlreadyExists", "PermissionDenied", "Unauthenticated",
		"FailedPrecondition", "ResourceExhausted", "Unimplemented",
	} {
		if strings.Contains(message, code+": ") || strings.Contains(message, "code = "+code+" ") {
			return "user"
		}
	}
	if repeats == "" || lacksSecret(message) {
		return "user"
	}
	return repeats
}

// lacksSecret says whether nothing was asked of a driver because a Secret is not there.
// One that is only missing to make the words of a driver fit to be shown is no cause.
func lacksSecret(message string) bool {
	cause, _, _ := strings.Cut(message, "(what the driver said is not shown")
	return strings.Contains(cause, `secrets "`) && strings.Contains(cause, "not found")
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
