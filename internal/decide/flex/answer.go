package flex

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Status is the driver's own word.
type Status string

// The three words that the contract knows. Any other is a failure.
const (
	Success      Status = "Success"
	Failure      Status = "Failure"
	NotSupported Status = "Not supported"
)

// Answer is what a driver printed. Fields that an operation does not answer are
// empty.
type Answer struct {
	Status Status
	// Message is the driver's own, as it came: it may hold secrets.
	Message string
	// Device answers attach and waitforattach.
	Device string
	// VolumeName answers getvolumename.
	VolumeName string
	// Attached answers isattached; nil is unknown.
	Attached *bool
	// NewSize answers expandvolume, in bytes; 0 is unknown.
	NewSize int64
	// Capabilities answer init.
	Capabilities Capabilities
}

// Reasons why there is no answer.
var (
	// ErrNoAnswer says that nothing the driver printed is an answer.
	ErrNoAnswer = errors.New("the driver printed no answer")
	// ErrMalformed says that a part of the answer is of the wrong kind.
	ErrMalformed = errors.New("the driver's answer is malformed")
	// ErrContradiction says that the exit code and the answer differ.
	ErrContradiction = errors.New("the driver's exit code contradicts its answer")
	// ErrKilled says that a signal ended the driver; what it began may be half
	// done.
	ErrKilled = errors.New("the driver was killed by a signal")
	// ErrTimeLimit says that a call was ended because it took too long; what it
	// began may go on.
	ErrTimeLimit = errors.New("the driver did not end in time")
	// ErrVolumeName says that a driver's name for a volume cannot be one.
	ErrVolumeName = errors.New("the driver's name for the volume cannot be a part of a path")
)

// maxDevice bounds what a driver calls a device, in bytes: it is an argument of
// later calls.
const maxDevice = 4096

// notRun is the first exit code that is a shell's own: 126 and 127 say that
// something could not be started, the others that a signal ended it.
const notRun = 126

// printed is an answer as it comes. Keys are read in any case, as Kubernetes
// does.
type printed struct {
	Status       json.RawMessage `json:"status"`
	Message      json.RawMessage `json:"message"`
	Device       json.RawMessage `json:"device"`
	VolumeName   json.RawMessage `json:"volumeName"`
	Attached     json.RawMessage `json:"attached"`
	NewSize      json.RawMessage `json:"volumeNewSize"`
	Capabilities json.RawMessage `json:"capabilities"`
}

// ParseAnswer reads what a driver printed to op and how it ended. exit is its
// exit code, -1 when a signal ended it. The answer is looked for in all of
// stdout, then in the last object of stdout, then in stderr (F-009). An error
// means that there is none; it never holds what the driver printed.
func ParseAnswer(op Operation, exit int, stdout, stderr []byte) (Answer, error) {
	if exit < 0 {
		return Answer{}, ErrKilled
	}
	p, found := find(stdout, stderr)
	if !found {
		return noAnswer(op, exit, tried(stdout) || tried(stderr))
	}
	status, err := text("status", p.Status)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Status: statusOf(status)}
	// What is no text is no reason to doubt the rest.
	a.Message, _ = text("message", p.Message)
	switch {
	case a.Status == Success && exit == 0:
		return p.results(op, a)
	case a.Status == Success, a.Status == NotSupported && exit >= notRun:
		return Answer{}, fmt.Errorf("%w: %q with exit code %d", ErrContradiction, a.Status, exit)
	case a.Status == Failure && a.Message == "" && !strings.EqualFold(status, string(Failure)):
		a.Message = "status " + status
	}
	return a, nil
}

// noAnswer is what it means that a driver ended without an answer, having tried
// to give one or not.
func noAnswer(op Operation, exit int, tried bool) (Answer, error) {
	if op.Optional() && exit < notRun && !tried {
		// F-027: many drivers end so when they do not know an operation.
		return Answer{Status: NotSupported}, nil
	}
	return Answer{}, fmt.Errorf("%w (exit code %d)", ErrNoAnswer, exit)
}

// statusOf reads a status in any case; what it does not know is a failure
// (F-010).
func statusOf(s string) Status {
	for _, known := range []Status{Success, NotSupported} {
		if strings.EqualFold(s, string(known)) {
			return known
		}
	}
	return Failure
}

// results adds what op answers besides the status; the rest is not looked at.
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

// decode reads one value; what is absent or null leaves it as it is.
func decode(key string, raw json.RawMessage, into any) error {
	if raw == nil || json.Unmarshal(raw, into) == nil {
		return nil
	}
	return fmt.Errorf("%w: %s is of the wrong kind", ErrMalformed, key)
}

// VolumeNameOf returns the volume's name by an answer to getvolumename, with "~"
// for each "/" (F-019). It becomes a part of paths: what cannot be one is
// ErrVolumeName.
func VolumeNameOf(a Answer) (string, error) {
	name := strings.ReplaceAll(a.VolumeName, "/", "~")
	if err := CheckComponent(name); err != nil {
		return "", fmt.Errorf("%w: %w", ErrVolumeName, err)
	}
	return name, nil
}

// maxComponent is the longest name of a file in bytes.
const maxComponent = 255

// CheckComponent refuses what cannot be one component of a path: "", ".", "..",
// a slash, a zero byte, more than 255 bytes.
func CheckComponent(s string) error {
	switch {
	case s == "" || s == "." || s == "..":
		return fmt.Errorf("%q is no name of a file", s)
	case len(s) > maxComponent:
		return fmt.Errorf("a name of %d bytes is too long, %d are possible", len(s), maxComponent)
	case strings.ContainsAny(s, "/\x00"):
		return errors.New("the name has a slash or a zero byte")
	}
	return nil
}
