package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/kube"
)

// lastLines is how many lines of a log an error shows.
const lastLines = 10

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
		nodes := h.client.StorageV1().CSINodes()
		return kube.Follow(ctx, kube.Source[*storagev1.CSINode]{Get: nodes.Get, Watch: nodes.Watch}, h.node,
			func(n *storagev1.CSINode) (bool, error) { return registers(n, d.Name), nil })
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
		fmt.Fprintf(&out, "\nNo process starts the drivers of %s: does 'volplane up' or 'volplane node' run on this host, "+
			"with this data directory?", h.files)
	}
	fmt.Fprintf(&out, "\nThe driver is retried. See 'volplane driver list' and 'volplane driver logs %[1]s'; change "+
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

// changedProcesses returns the processes of a driver that are started by another command, or in another
// environment, than before. plugins is the directory of sockets.
func changedProcesses(before *driverfile.Driver, d driverfile.Driver, plugins string) []driverfile.Process {
	var out []driverfile.Process
	for _, p := range d.Processes {
		same := before != nil && slices.ContainsFunc(before.Processes, func(was driverfile.Process) bool {
			return before.ProcessName(was) == d.ProcessName(p) &&
				reflect.DeepEqual(effective(*before, was, plugins), effective(d, p, plugins))
		})
		if len(p.Exec) > 0 && !same {
			out = append(out, p)
		}
	}
	return out
}

// effective returns a process with its defaults, without what makes no difference to its program.
func effective(d driverfile.Driver, p driverfile.Process, plugins string) driverfile.Process {
	p.Roles, p.Socket, p.WorkingDir = nil, d.Socket(p, plugins), cmp.Or(p.WorkingDir, "/")
	p.EnvFromSecret = slices.SortedFunc(slices.Values(p.EnvFromSecret), func(a, b driverfile.SecretVariable) int {
		return strings.Compare(a.Name, b.Name)
	})
	return p
}
