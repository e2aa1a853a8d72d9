package driver

import (
	"cmp"
	"errors"
	"io/fs"
	"time"

	"volplane.dev/volplane/internal/driverfile"
	"volplane.dev/volplane/internal/supervise"
)

// States of a process, beside those of its record.
const (
	stateAlive         = "alive"
	stateNotRegistered = "not registered"
	// stateNotStarted: no supervisor has a record of it.
	stateNotStarted = "not started"
	// stateEnded: the record names a process that is gone, so no supervisor runs.
	stateEnded = "ended"
	// stateNoAnswer: another supervisor runs it, and no process listens at its socket.
	stateNoAnswer = "no answer"
	// stateUnknown: the record cannot be read.
	stateUnknown = "unknown"
	// stateInvalid: its file cannot be used.
	stateInvalid = "invalid file"
)

// sighting is what can be seen of a process.
type sighting struct {
	// record is the supervisor's; recordErr says why there is none.
	record    supervise.Record
	recordErr error
	// lives says that the process that the record names exists.
	lives bool
	// late says that the time at which the process was to be started again is over, so no supervisor runs.
	late bool
	// answers says that a process listens at the socket.
	answers bool
	// registered says that the API names the driver on this node; nil if it cannot be asked.
	registered *bool
}

// processStatus is a process of a driver as 'driver list' shows it.
type processStatus struct {
	// Name is the name in the supervisor's directory.
	Name   string            `json:"name"`
	Roles  []driverfile.Role `json:"roles"`
	State  string            `json:"state"`
	Since  *time.Time        `json:"since,omitempty"`
	PID    int               `json:"pid,omitempty"`
	Socket string            `json:"socket"`
	// Version is what the driver at the socket says, if it was asked.
	Version string `json:"version,omitempty"`
	// Restarts is how often it ended by itself.
	Restarts  int    `json:"restarts"`
	LastError string `json:"lastError,omitempty"`
	// serves says that a process listens at the socket.
	serves bool
}

// judge says in which state a process is.
func (g sighting) judge(p driverfile.Process) processStatus {
	out := processStatus{Roles: p.Roles, State: stateAlive, serves: g.answers}
	if len(p.Exec) > 0 {
		g.judgeStarted(&out)
	} else if !g.answers {
		out.State = stateNoAnswer
	}
	if out.State == stateAlive && p.Has(driverfile.RoleNode) && g.registered != nil && !*g.registered {
		out.State = stateNotRegistered
	}
	return out
}

// judgeStarted is judge for a process that this host's supervisor starts.
func (g sighting) judgeStarted(out *processStatus) {
	switch {
	case errors.Is(g.recordErr, fs.ErrNotExist):
		out.State = stateNotStarted
		return
	case g.recordErr != nil:
		out.State, out.LastError = stateUnknown, g.recordErr.Error()
		return
	case g.record.State != supervise.Running && g.late:
		out.State = stateEnded
	case g.record.State != supervise.Running:
		out.State = string(g.record.State)
	case !g.lives:
		out.State = stateEnded
	default:
		out.PID = g.record.PID
	}
	out.Since, out.Restarts = &g.record.Since, g.record.Restarts
	out.LastError = cmp.Or(g.record.Message, lastEnd(g.record))
}

// lastEnd says how a process ended last, and what it had said by then.
func lastEnd(r supervise.Record) string {
	if r.LastExit == "" || r.LastLine == "" {
		return r.LastExit
	}
	return r.LastExit + ": " + r.LastLine
}

// String returns a line about the process for people who wait for it.
func (p processStatus) String() string {
	out := p.Name + " is " + p.State
	if p.LastError != "" {
		out += " (" + p.LastError + ")"
	}
	return out
}
