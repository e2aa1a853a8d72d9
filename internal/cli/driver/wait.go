package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/note"
	"volplane.dev/volplane/internal/driverfile"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/supervise"
	"volplane.dev/volplane/internal/volume"
)

const (
	// answerTime limits how long a driver may take to say what it is.
	answerTime = 5 * time.Second
	// connectTime limits how long a socket is tried.
	connectTime = time.Second
	// lastLines is how many lines of a log an error shows.
	lastLines = 10
)

// started identifies one start of a process; the zero value means that it has not started.
type started struct {
	pid  int
	time uint64
}

// startsOf returns the present starts of processes, by their names.
func (h *hostDrivers) startsOf(d driverfile.Driver, of []driverfile.Process) map[string]started {
	out := map[string]started{}
	for _, p := range of {
		r, _ := supervise.Read(h.state, d.ProcessName(p)) // without a record there was no start
		out[d.ProcessName(p)] = started{r.PID, r.StartTime}
	}
	return out
}

// awaitStarts waits until each of these processes has been started since.
func (h *hostDrivers) awaitStarts(ctx context.Context, before map[string]started) error {
	if len(before) == 0 {
		return nil
	}
	return onChange(ctx, h.state, func() (bool, error) {
		for name, was := range before {
			r, err := supervise.Read(h.state, name)
			if err != nil || r.State != supervise.Running || was == (started{r.PID, r.StartTime}) {
				return false, nil //nolint:nilerr // the record does not exist yet, or the status reports it
			}
		}
		return true, nil
	})
}

// awaitRegistration waits until the API names the driver on this host's node.
func (h *hostDrivers) awaitRegistration(ctx context.Context, name string) error {
	registered := func(n *storagev1.CSINode) (bool, error) { return registers(n, name), nil }
	return kube.Follow(ctx, h.nodeSource(), h.node, registered)
}

// awaitDriver waits until the changed processes of a driver run and the driver is registered.
func (h *hostDrivers) awaitDriver(
	ctx context.Context, d driverfile.Driver, before map[string]started, limit time.Duration,
) error {
	waiting, cancel := shell.WithTimeout(ctx, limit)
	defer cancel()
	absent := false
	tell := func(ctx context.Context) string {
		return "waiting for driver/" + d.Name + ": " + h.summary(ctx, d, &absent)
	}
	err := shell.Progress(waiting, h.err, tell, func(ctx context.Context) error {
		if err := h.awaitStarts(ctx, before); err != nil {
			return err
		}
		return h.awaitRegistration(ctx, d.Name)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return h.notReady(ctx, d, fmt.Sprintf("not registered on node %s after %s: %s", h.node, limit,
			h.summary(ctx, d, &absent)))
	}
	if err != nil {
		return fmt.Errorf("wait until driver %s is registered: %w", d.Name, err)
	}
	fmt.Fprintf(h.out, "driver/%s registered on node %s\n", d.Name, h.node)
	return nil
}

// summary returns a line about the processes of a driver. registered says whether the API names the driver; nil if
// that does not matter.
func (h *hostDrivers) summary(ctx context.Context, d driverfile.Driver, registered *bool) string {
	var out []string
	for _, p := range d.Processes {
		out = append(out, h.look(ctx, d, p, registered).String())
	}
	return strings.Join(out, "; ")
}

// notReady is the error about a driver that is not what it should be in time.
func (h *hostDrivers) notReady(ctx context.Context, d driverfile.Driver, what string) error {
	var out strings.Builder
	fmt.Fprintf(&out, "driver %s is %s", d.Name, what)
	unknown := 0
	for _, p := range d.Processes {
		name := d.ProcessName(p)
		if other := h.otherName(ctx, d, p); other != "" && !strings.Contains(what, other) {
			fmt.Fprintf(&out, "\nThe driver at %s calls itself %s: add it with this name", d.Socket(p, h.plugins), other)
		}
		if s := h.look(ctx, d, p, nil); s.State == stateNotStarted && s.LastError == "" {
			unknown++
		}
		if lines := lastLogLines(h.state, name, lastLines); len(p.Exec) > 0 && len(lines) > 0 {
			fmt.Fprintf(&out, "\nLast lines of %s:\n  %s", name, strings.Join(lines, "\n  "))
		}
	}
	if unknown > 0 {
		fmt.Fprintf(&out, "\nNobody starts the drivers of %s: does 'volplane up' or 'volplane node' run on this host, with "+
			"this data directory?", h.files)
	}
	fmt.Fprintf(&out, "\nThe driver is tried again. See 'volplane driver list' and 'volplane driver logs %[1]s'; change "+
		"it with 'volplane driver add %[1]s --replace ...', or remove it with 'volplane driver remove %[1]s'", d.Name)
	return errors.New(out.String())
}

// otherName returns the name of the driver at the socket of a process if that is not the driver's; "" if it is, or
// no process answers.
func (h *hostDrivers) otherName(ctx context.Context, d driverfile.Driver, p driverfile.Process) string {
	if !listens(ctx, d.Socket(p, h.plugins)) {
		return ""
	}
	found, err := ask(ctx, d.Socket(p, h.plugins), csi.WithNameOnly())
	if err != nil || found.Name == d.Name {
		return ""
	}
	return found.Name
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
		if wrong := note.Of(n)[driver]; wrong != "" {
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
