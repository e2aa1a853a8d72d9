package flex

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Status is the status that a driver printed.
type Status string

// The three statuses of the contract. Any other counts as Failure.
const (
	Success      Status = "Success"
	Failure      Status = "Failure"
	NotSupported Status = "Not supported"
)

// Answer is a driver's answer. Fields that an operation does not return are empty.
type Answer struct {
	Status Status
	// Message is the driver's message, unchanged: it may hold secrets.
	Message string
	// Device is the result of attach and waitforattach.
	Device string
	// VolumeName is the result of getvolumename.
	VolumeName string
	// Attached is the result of isattached; nil is unknown.
	Attached *bool
	// NewSize is the result of expandvolume, in bytes; 0 is unknown.
	NewSize int64
	// Capabilities is the result of init.
	Capabilities Capabilities
}

// Errors of ParseAnswer, of the call itself, and of VolumeNameOf.
var (
	// ErrNoAnswer says that the output has no answer.
	ErrNoAnswer = errors.New("the driver printed no answer")
	// ErrMalformed says that a field of the answer has the wrong type.
	ErrMalformed = errors.New("the driver's answer is malformed")
	// ErrContradiction says that the exit code and the status of the answer contradict each other.
	ErrContradiction = errors.New("the driver's exit code contradicts its answer")
	// ErrKilled says that a signal ended the driver; its work may be half done.
	ErrKilled = errors.New("the driver was killed by a signal")
	// ErrTimeLimit says that the call was stopped at its time limit; its work may continue.
	ErrTimeLimit = errors.New("the driver did not finish in time")
	// ErrVolumeName says that the driver's name for a volume cannot be a path component.
	ErrVolumeName = errors.New("the driver's name for the volume cannot be a part of a path")
)

// maxDevice is the length limit, in bytes, of a device's name, which is an argument of later calls.
const maxDevice = 4096

// firstShellExit is the first exit code that a shell itself returns: 126 and 127 say that a program could
// not be started, higher ones that a signal ended it.
const firstShellExit = 126

// printed is an answer before its fields are checked. Keys match in any case, as in Kubernetes.
type printed struct {
	Status       json.RawMessage `json:"status"`
	Message      json.RawMessage `json:"message"`
	Device       json.RawMessage `json:"device"`
	VolumeName   json.RawMessage `json:"volumeName"`
	Attached     json.RawMessage `json:"attached"`
	NewSize      json.RawMessage `json:"volumeNewSize"`
	Capabilities json.RawMessage `json:"capabilities"`
}

// ParseAnswer returns the answer in a driver's output. exit is the exit code, -1 if a signal ended
// the driver. The answer is all of stdout, or the last object in stdout, or that in stderr (F-009).
// An error says that there is no answer; it never quotes the output.
func ParseAnswer(op Operation, exit int, stdout, stderr []byte) (Answer, error) {
	if exit < 0 {
		return Answer{}, ErrKilled
	}
	p, found := find(stdout, stderr)
	if !found {
		return noAnswer(op, exit, looksLikeAnswer(stdout) || looksLikeAnswer(stderr))
	}
	status, err := text("status", p.Status)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Status: statusOf(status)}
	// A message of the wrong type is ignored; the rest counts.
	a.Message, _ = text("message", p.Message)
	switch {
	case a.Status == Success && exit == 0:
		return p.results(op, a)
	case a.Status == Success, a.Status == NotSupported && exit >= firstShellExit:
		return Answer{}, fmt.Errorf("%w: %q with exit code %d", ErrContradiction, a.Status, exit)
	case a.Status == Failure && a.Message == "" && !strings.EqualFold(status, string(Failure)):
		a.Message = "status " + status
	}
	return a, nil
}

// noAnswer returns the result of a call without an answer; tried says whether the output looks like
// an attempt at one.
func noAnswer(op Operation, exit int, attempted bool) (Answer, error) {
	if op.Optional() && exit < firstShellExit && !attempted {
		// F-027: many drivers end so when they do not know an operation.
		return Answer{Status: NotSupported}, nil
	}
	return Answer{}, fmt.Errorf("%w (exit code %d)", ErrNoAnswer, exit)
}

// statusOf parses a status in any case; an unknown one is Failure (F-010).
func statusOf(s string) Status {
	for _, known := range []Status{Success, NotSupported} {
		if strings.EqualFold(s, string(known)) {
			return known
		}
	}
	return Failure
}

// results adds the fields that op returns; others are ignored.
func (p printed) results(op Operation, a Answer) (Answer, error) {
	var err error
	switch op {
	case OpInit:
		a.Capabilities, err = capabilities(p.Capabilities)
	case OpGetVolumeName:
		a.VolumeName, err = text("volumeName", p.VolumeName)
	case OpAttach, OpWaitForAttach:
		a.Device, err = text("device", p.Device)
		switch {
		case err == nil && strings.ContainsRune(a.Device, 0):
			err = fmt.Errorf("device: %w", ErrNUL)
		case len(a.Device) > maxDevice:
			err = fmt.Errorf("%w: device has %d bytes, %d are possible", ErrMalformed, len(a.Device), maxDevice)
		}
	case OpIsAttached:
		err = decode("attached", p.Attached, &a.Attached)
	case OpExpandVolume:
		err = decode("volumeNewSize", p.NewSize, &a.NewSize)
		if err == nil && a.NewSize < 0 {
			err = fmt.Errorf("%w: volumeNewSize is negative", ErrMalformed)
		}
	}
	if err != nil {
		return Answer{}, err
	}
	return a, nil
}

func text(key string, raw json.RawMessage) (string, error) {
	var s string
	err := decode(key, raw, &s)
	return s, err
}

// decode decodes one value; an absent or null one leaves into unchanged.
func decode(key string, raw json.RawMessage, into any) error {
	if raw == nil || json.Unmarshal(raw, into) == nil {
		return nil
	}
	return fmt.Errorf("%w: %s is of the wrong kind", ErrMalformed, key)
}

// VolumeNameOf returns the volume's name in an answer of getvolumename, with "~" for each "/"
// (F-019). The error is ErrVolumeName if it cannot be a path component.
func VolumeNameOf(a Answer) (string, error) {
	name := strings.ReplaceAll(a.VolumeName, "/", "~")
	if err := CheckComponent(name); err != nil {
		return "", fmt.Errorf("%w: %w", ErrVolumeName, err)
	}
	return name, nil
}

// maxComponent is the longest name of a file in bytes.
const maxComponent = 255

// CheckComponent refuses a text that cannot be one path component: "", ".", "..", or with a slash,
// a NUL byte, or more than 255 bytes.
func CheckComponent(s string) error {
	switch {
	case s == "" || s == "." || s == "..":
		return fmt.Errorf("%q is not a file name", s)
	case len(s) > maxComponent:
		return fmt.Errorf("a name of %d bytes is too long, %d are possible", len(s), maxComponent)
	case strings.ContainsAny(s, "/\x00"):
		return errors.New("the name has a slash or a zero byte")
	}
	return nil
}
