package volume

import (
	"encoding/json"
	"strings"
)

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
