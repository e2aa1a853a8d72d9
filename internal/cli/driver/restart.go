package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/hosting/driverfile"
)

func restartCommand(s *shell.Shell) *cobra.Command {
	var f hostFlags
	var wait time.Duration
	c := &cobra.Command{
		Use:   "restart NAME",
		Short: "Restart the processes of a CSI driver of this host",
		Long: `Restart the processes of a CSI driver, for example after its program was
replaced, and wait until they run. Mounts stay. The command writes restartedAt to
the driver's file and leaves the rest of it as it is.`,
		Example: `  volplane driver restart csi.example.com`,
		Args:    cobra.ExactArgs(1), ValidArgsFunction: completeHosted(s),
		RunE: func(cmd *cobra.Command, args []string) error { return restart(cmd.Context(), s, f, args[0], wait) },
	}
	f.register(c)
	c.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait until they run; 0 not to wait")
	return c
}

func restart(ctx context.Context, s *shell.Shell, f hostFlags, name string, wait time.Duration) error {
	h, err := driversOf(s, f)
	if err != nil {
		return err
	}
	return h.restart(ctx, name, wait)
}

func (h *hostDrivers) restart(ctx context.Context, name string, wait time.Duration) error {
	d, err := h.get(name)
	if err != nil {
		return err
	}
	own := changedProcesses(nil, d, h.plugins)
	if len(own) == 0 {
		return fmt.Errorf("another program runs driver %s: restart it there", name)
	}
	before := h.startsOf(d, own)
	if d, err = h.files.Restart(name, time.Now()); err != nil {
		return fmt.Errorf("restart driver %s: %w", name, err)
	}
	if wait <= 0 {
		fmt.Fprintf(h.out, "driver/%s restarting\n", name)
		return nil
	}
	return h.awaitRestart(ctx, d, before, wait)
}

func (h *hostDrivers) awaitRestart(
	ctx context.Context, d driverfile.Driver, before map[string]started, limit time.Duration,
) error {
	waiting, cancel := shell.WithTimeout(ctx, limit)
	defer cancel()
	tell := func(ctx context.Context) string {
		return "waiting for driver/" + d.Name + ": " + h.summary(ctx, d, nil)
	}
	err := shell.Progress(waiting, h.err, tell, func(ctx context.Context) error { return h.awaitStarts(ctx, before) })
	if errors.Is(err, context.DeadlineExceeded) {
		return h.notReady(ctx, d, fmt.Sprintf("not restarted after %s: %s", limit, h.summary(ctx, d, nil)))
	}
	if err != nil {
		return fmt.Errorf("wait until driver %s is restarted: %w", d.Name, err)
	}
	fmt.Fprintf(h.out, "driver/%s restarted\n", d.Name)
	return nil
}
