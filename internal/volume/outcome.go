package volume

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// Outcome says whether a call that changes something took effect. It answers "may the effect
// exist?", not "was there an error?".
type Outcome int

const (
	// Unknown means that the effect may exist or may still come: the deadline passed, the connection was lost, or the
	// answer makes no sense. The call must be repeated with the same arguments or undone; it must not be forgotten.
	Unknown Outcome = iota
	// Done means that the effect exists. The call need not be repeated.
	Done
	// Failed means that the effect does not exist and will not appear later.
	Failed
)

// String returns the outcome's name as it appears in logs and metrics.
func (o Outcome) String() string {
	switch o {
	case Done:
		return "Done"
	case Failed:
		return "Failed"
	default:
		return "Unknown"
	}
}

// ErrNoSecret is the error of a Secret that a call needs and that does not exist.
var ErrNoSecret = errors.New("the Secret does not exist")

// Answer is how a call of a driver ended, as the facts that decisions judge.
type Answer struct {
	// Outcome says what is known of the call's effect.
	Outcome Outcome
	// Code is the name of the driver's gRPC code, and Number the code itself. They are empty when the driver was not
	// called: the error is this program's own or the API server's.
	Code   string
	Number int32
	// Gone says that no process serves the driver's socket.
	Gone bool
	// Text is the error as one short line without secrets; empty when there is none.
	Text string
	// NoSecret says that the driver was not called, because a Secret that it needs does not exist.
	NoSecret bool
	// Missing says why the call was made without its Secret; empty if it had it or needs none.
	Missing string
}

// Failure returns the error of a call, with the missing Secret as a possible cause.
func (a Answer) Failure() string {
	if a.Missing == "" {
		return a.Text
	}
	return a.Text + "; " + a.Missing
}

// Next returns who has to act after a call has failed: the user when a repeated call would fail as well, because of the
// driver's code, because a Secret does not exist, or because the call is not repeated (repeats is zero); otherwise
// repeats, the actor that repeats it.
func (a Answer) Next(repeats Actor) Actor {
	if repeats.IsZero() || a.NoSecret || a.Missing != "" || slices.Contains(final(), a.Code) {
		return User()
	}
	return repeats
}

// Because returns the explanation of a call that failed; repeats is the actor that repeats it.
func (a Answer) Because(r Reason, repeats Actor, message string) Because {
	return Because{Reason: r, Message: message, Next: a.Next(repeats), Cause: a.cause()}
}

func (a Answer) cause() Cause { return Cause{Code: a.Code, Gone: a.Gone} }

// final returns the codes after which the CSI specification asks for a change before the call is repeated: of the
// request, of the storage, or of the caller's rights.
func final() []string {
	return []string{
		"InvalidArgument", "OutOfRange", "NotFound", "AlreadyExists", "PermissionDenied", "Unauthenticated",
		"FailedPrecondition", "ResourceExhausted", "Unimplemented",
	}
}

// Codes returns the names of gRPC's codes by their numbers.
func Codes() []string {
	return []string{
		"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
		"ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable",
		"DataLoss", "Unauthenticated",
	}
}

// AnswerIn reads the answer of a failed call from the text of an error, which comes from the status of an object, from
// an event, or from another program. Of several codes in the text, as "Code: text" or in gRPC's form, the first one is
// the driver's own; drivers quote the errors of their storage after it.
func AnswerIn(text string) Answer {
	a := Answer{Outcome: Failed, Text: text, NoSecret: lacksSecret(text), Gone: DriverGone(text)}
	first := len(text)
	for _, name := range Codes() {
		for _, form := range []string{name + ": ", "code = " + name + " "} {
			if i := strings.Index(text, form); i >= 0 && i < first {
				a.Code, first = name, i
			}
		}
	}
	return a
}

// lacksSecret says whether the driver was not called because a Secret does not exist. A Secret that was only needed to
// redact the driver's message is not the cause of the failure.
func lacksSecret(text string) bool {
	cause, _, _ := strings.Cut(text, "(what the driver said is not shown")
	return strings.Contains(cause, `secrets "`) && strings.Contains(cause, "not found")
}

// DriverGone says whether a call failed because no process serves the driver's socket, by the texts of gRPC for a
// connection that was refused or lost.
func DriverGone(text string) bool {
	for _, words := range []string{
		"connection error: ", "error reading from server: ", "transport is closing", "connection refused",
	} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// Cause is what programs read of an explanation. It stands in an annotation beside the sentence that people read.
type Cause struct {
	// Code is the gRPC code of the driver's answer, if that is the cause; empty otherwise.
	Code string `json:"code,omitempty"`
	// Reason is the more precise reason, if the explanation has one of Kubernetes' own that says little, such as
	// FailedScheduling.
	Reason Reason `json:"reason,omitempty"`
	// Gone says that no process serves the driver's socket.
	Gone bool `json:"gone,omitempty"`
	// Object is the object whose state is the cause, if it is not the one that the explanation is about, as KIND/NAME with
	// the kinds of `volplane why`, such as pv/NAME.
	Object string `json:"object,omitempty"`
	// Node is the node that has the cause, where it matters.
	Node string `json:"node,omitempty"`
}

// maxCause is how many bytes of an annotation are read; names have 253 at most.
const maxCause = 1024

// String returns the annotation for a cause; it is empty for none.
func (c Cause) String() string {
	if c == (Cause{}) {
		return ""
	}
	text, err := json.Marshal(c)
	if err != nil {
		return ""
	}
	return string(text)
}

// MessageOf returns the message of an explanation from the text of a warning and its annotations.
func MessageOf(text string, annotations map[string]string) string {
	return strings.TrimSuffix(text, ParseActor(annotations[AnnNext]).Suffix())
}

// CauseOf reads an annotation that String has made. An object that an earlier version or another program has written
// has no such annotation: its cause is what AnswerIn finds in the text beside it.
func CauseOf(annotation, text string) Cause {
	var c Cause
	if len(annotation) <= maxCause && json.Unmarshal([]byte(annotation), &c) == nil {
		return c
	}
	return AnswerIn(text).cause()
}
