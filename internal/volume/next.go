package volume

import "strings"

// NextAfter returns who has to act after a call of a driver failed with message. That is
// "user" when a repeated call would fail as well: because of the CSI error code in the
// message, because a Secret does not exist, or because nothing repeats the call (repeats
// is empty). Otherwise it is repeats, the component that repeats the call. The code is
// recognized as "Code: text" and in gRPC's form.
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

// lacksSecret says whether the driver was not called because a Secret does not exist. A
// Secret that was only needed to redact the driver's message is not the cause of the
// failure.
func lacksSecret(message string) bool {
	cause, _, _ := strings.Cut(message, "(what the driver said is not shown")
	return strings.Contains(cause, `secrets "`) && strings.Contains(cause, "not found")
}

// DriverGone says whether a call failed because no process serves the driver's socket.
// The texts are those of gRPC for a connection that was refused or lost.
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
