//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/driverfile"
	"volplane.dev/volplane/internal/supervise"
)

// removed waits until the processes of a driver without a file have ended, and says that it is removed.
func (h *hostDrivers) removed(ctx context.Context, name string, o removal) error {
	if o.wait > 0 {
		if err := h.awaitEnd(ctx, name, o.wait); err != nil {
			return err
		}
		// A control plane that was killed cannot have removed it.
		if err := registrar.RemoveStale(ctx, filepath.Join(filepath.Dir(h.plugins), "plugins_registry"), name); err != nil {
			return fmt.Errorf("remove registration of driver %s: %w", name, err)
		}
	}
	fmt.Fprintf(h.out, "driver/%s removed\n", name)
	return nil
}

// leftPrograms returns the programs of a driver that are known, and that no file describes. What cannot be read is
// taken for described, as the control plane does it.
func (h *hostDrivers) leftPrograms(driver string) []string {
	wanted, broken := h.files.Read()
	if broken[string(h.files)] != nil {
		return nil
	}
	kept := driverfile.Programs(wanted, broken, func(p driverfile.Process) bool { return len(p.Exec) > 0 })
	known, _ := supervise.Names(h.state) // the process that watches the directory reports that it cannot be read
	own := driverfile.ProgramsOf(driver)
	return slices.DeleteFunc(known, func(program string) bool { return kept[program] || !slices.Contains(own, program) })
}

// awaitEnd waits until all processes of a driver without a file have ended.
func (h *hostDrivers) awaitEnd(ctx context.Context, name string, limit time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tell := func(context.Context) string { return "waiting for driver/" + name + " to end: " + h.left(name) }
	err := progress(waiting, h.err, tell, func(ctx context.Context) error {
		return onChange(ctx, h.state, func() (bool, error) {
			programs := h.leftPrograms(name)
			if len(programs) == 0 {
				return true, nil
			}
			// Without a control plane or node agent, no other process does it.
			return supervise.StopAlone(ctx, h.state, programs)
		})
	})
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the file of driver %[1]s is removed, but not all of its processes have ended after %[2]s: %[3]s. "+
			"One that stays although it is killed waits for the kernel, as for a server that does not answer. Repeat "+
			"'volplane driver remove %[1]s' to wait on", name, limit, h.left(name))
	}
	return fmt.Errorf("wait until driver %s has ended: %w", name, err)
}

// left says which processes of a driver live.
func (h *hostDrivers) left(name string) string {
	var out []string
	for _, program := range h.leftPrograms(name) {
		r, _ := supervise.Read(h.state, program) // without a record nothing is known about it
		living := r.Living()
		if len(living) == 0 {
			living = []string{"none that is known, but its record"}
		}
		out = append(out, program+" has "+strings.Join(living, ", "))
	}
	return strings.Join(out, "; ")
}
