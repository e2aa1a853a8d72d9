package flex

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/workshop/finding"
)

// Call is a finished call of a driver.
type Call struct {
	Op Operation
	// Exit is the exit code; -1 if a signal ended the driver.
	Exit           int
	Stdout, Stderr []byte
	// Seen are the hosts that see by the mount table, at once or when they try again, whether a call
	// that answers Success has done its work, whatever was printed.
	Seen []finding.Host
}

// SeenBy returns the value of Call.Seen for a call about a directory, of which before and after are
// the numbers of mounts at and below it.
func SeenBy(op Operation, before, after int) []finding.Host {
	switch {
	case (op == OpMount || op == OpMountDevice) && after > before:
		// Volplane undoes what a failed call has mounted, and Kubernetes takes it for the volume.
		return []finding.Host{Kubernetes}
	case op == OpUnmountDevice, op == OpUnmount && before+after > 0:
		// Either it is done, or a failure is what is true.
		return Hosts()
	case op == OpUnmount:
		// Kubernetes calls unmount again as long as there is a directory.
		return []finding.Host{Volplane}
	}
	return nil
}

// Read returns the driver's answer as volplane reads it; see ParseAnswer.
func (c Call) Read() (Answer, error) { return ParseAnswer(c.Op, c.Exit, c.Stdout, c.Stderr) }

// kubeletAnswer is an answer as Kubernetes decodes it.
type kubeletAnswer struct {
	Status       string        `json:"status"`
	Message      string        `json:"message"`
	Device       string        `json:"device"`
	VolumeName   string        `json:"volumeName"`
	Attached     bool          `json:"attached"`
	NewSize      int64         `json:"volumeNewSize"`
	Capabilities *Capabilities `json:"capabilities"`
}

// ReadByKubernetes returns the status that Kubernetes takes from a call. It reads standard output and standard error as
// one JSON text, in which each field must have the right type, and compares the status letter by letter.
func (c Call) ReadByKubernetes() Status {
	var a kubeletAnswer
	if json.Unmarshal(slices.Concat(c.Stdout, c.Stderr), &a) != nil {
		return Failure
	}
	switch {
	case a.Status == string(NotSupported):
		return NotSupported
	case a.Status == string(Success) && c.Exit == 0:
		return Success
	}
	return Failure
}

// Hosts returns the hosts that call an operation.
func (o Operation) Hosts() []finding.Host {
	switch {
	case o == OpExpandVolume:
		// Kubernetes' controller that expands volumes knows no FlexVolume plugin.
		return []finding.Host{Volplane}
	case slices.Contains(Operations(), o):
		return Hosts()
	}
	return nil
}

// meant returns the status that the driver seems to mean, however it was printed.
func (c Call) meant() Status {
	a, err := c.Read()
	switch {
	case err == nil:
		return a.Status
	case c.Exit == 0:
		return Success
	}
	if p, found := find(c.Stdout, c.Stderr); found {
		if word, err := text("status", p.Status); err == nil && statusOf(word) == Success {
			return Success
		}
	}
	return Failure
}

// MisreadBy returns the hosts that take a call which did its work, or which the driver leaves to the
// host, for a failure. A call that fails is a failure for every host, in whatever form.
func (c Call) MisreadBy() []finding.Host {
	meant := c.meant()
	if c.Exit < 0 || meant == Failure {
		return nil
	}
	var all []finding.Host
	_, err := c.Read()
	for _, host := range c.Op.Hosts() {
		// What Kubernetes cannot read of isattached counts as attached.
		byKubernetes := host == Kubernetes && c.Op != OpIsAttached && c.ReadByKubernetes() != meant
		seen := meant == Success && slices.Contains(c.Seen, host)
		if (byKubernetes || host == Volplane && err != nil) && !seen {
			all = append(all, host)
		}
	}
	return all
}

// maxQuoted is how many bytes of an output are shown in a finding.
const maxQuoted = 200

// Quote returns the output of a call for a message: printable, bounded and in quotes. hide removes secrets.
func (c Call) Quote(hide func(string) string) string {
	said := bytes.TrimSpace(slices.Concat(c.Stdout, []byte(" "), c.Stderr))
	if len(said) == 0 {
		return "it printed nothing"
	}
	return "it printed " + excerpt([]byte(hide(string(said))))
}

func excerpt(text []byte) string {
	text = bytes.TrimSpace(text)
	if len(text) <= maxQuoted {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%q and more", text[:maxQuoted])
}

const (
	// maxShown is how many bytes of an invalid name are shown.
	maxShown = 100
	// MaxMessage is how many bytes of a driver's text are shown.
	MaxMessage = 1 << 10
)

// Redact returns a driver's text in the form in which it may be shown: without secrets, on one
// line, and not longer than MaxMessage.
func Redact(text string, secrets *redact.Secrets) string {
	return redact.Line(secrets.Hide(text), MaxMessage)
}

// bounded truncates an invalid name to what is shown of it.
func bounded(s string) string { return redact.Bounded(s, maxShown) }
