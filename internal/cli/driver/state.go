package driver

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/volume"
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

// look returns the state of a process now.
func (h *hostDrivers) look(
	ctx context.Context, d driverfile.Driver, p driverfile.Process, registered *bool,
) processStatus {
	socket := d.Socket(p, h.plugins)
	g := sighting{registered: registered, answers: listens(ctx, socket)}
	if len(p.Exec) > 0 {
		g.record, g.recordErr = supervise.Read(h.state, d.ProcessName(p))
		g.lives, g.late = g.record.Lives(), overdue(g.record.NextAt, time.Now())
	}
	status := g.judge(p)
	status.Name, status.Socket = d.ProcessName(p), socket
	if status.State != stateNotRegistered && status.State != stateNotStarted {
		return status
	}
	status.LastError = cmp.Or(h.refusal(ctx, d.Name), status.LastError)
	if status.State == stateNotRegistered && status.LastError == "" && !g.answers {
		status.LastError = "no process listens at " + socket
	}
	return status
}

// overdue says whether a start that was planned for a time was not tried; a zero time plans none.
func overdue(planned, now time.Time) bool {
	const most = 15 * time.Second // more than a start takes on a host that is busy
	return !planned.IsZero() && now.After(planned.Add(most))
}

// listens says whether a process listens at a socket.
func listens(ctx context.Context, socket string) bool {
	c, err := (&net.Dialer{Timeout: connectTime}).DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// ask returns what the driver at a socket reports about itself.
func ask(ctx context.Context, socket string, what ...csi.Option) (*csi.Driver, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	found, err := csi.Dial(ctx, socket, what...)
	if err != nil {
		return nil, err
	}
	return found, found.Close()
}

// refusal returns why the node agent or the host of the drivers refuses a driver: what the Node says now, or else what
// was last reported about it; "" if nothing was, or neither can be read.
func (h *hostDrivers) refusal(ctx context.Context, driver string) string {
	if h.client == nil {
		return ""
	}
	if n, err := h.client.CoreV1().Nodes().Get(ctx, h.node, metav1.GetOptions{}); err == nil {
		if wrong := driverstatus.Of(n)[driver]; wrong != "" {
			return shell.PlainLine(wrong)
		}
	}
	o := metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + h.node + ",reason=" +
		string(volume.ReasonRegistrationRefused)}
	events, _ := gather.Every[*corev1.Event](ctx, "events", o, h.client.CoreV1().Events(metav1.NamespaceDefault).List)
	var last *corev1.Event
	for _, e := range events {
		about := e.Reason == string(volume.ReasonRegistrationRefused) && e.InvolvedObject.Name == h.node &&
			volume.CauseOf(e.Annotations[volume.AnnCause], "").Object == "csidriver/"+driver
		if about && (last == nil || gather.LastSeen(e).After(gather.LastSeen(last))) {
			last = e
		}
	}
	if last == nil {
		return ""
	}
	return shell.PlainLine(last.Message)
}
