package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi/trace"
)

// faultsFlags are the flags of 'driver faults'.
type faultsFlags struct {
	hostFlags
	set, output string
	clear       bool
	life        time.Duration
}

func faultsCommand(s *shell.Shell) *cobra.Command {
	var f faultsFlags
	c := &cobra.Command{
		Use:   "faults [NAME]",
		Short: "Have calls to a CSI driver fail, for drills and tests",
		Long: `Plant faults between the control plane or node agent of this host and a CSI
driver, show those that are planted, or clear them. --set replaces all faults of
the driver. They end by themselves after --for, and with the process.

A fault is METHOD:EFFECT, with how often it happens if that is not always: once,
3x or 20%. METHOD is the name of a CSI method, or * for all but the identity
service. EFFECT is

  a gRPC code   the driver is not called, and the call fails with this code
  hang 30s      the driver is not called, and the caller waits; without a time,
                until it gives up
  lost          the driver is called, and its answer is lost

Each error says that it is planted, and how to clear it.`,
		Example: `  volplane driver faults csi.example.com --set 'NodeStageVolume:hang 30s once,CreateVolume:Unavailable 20%'
  volplane driver faults
  volplane driver faults csi.example.com --clear`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: completeCalled(s),
		RunE: func(cmd *cobra.Command, args []string) error { return faults(cmd.Context(), s, f, args) },
	}
	f.register(c)
	p := c.Flags()
	p.StringVar(&f.set, "set", "", "faults to plant, separated by commas")
	p.BoolVar(&f.clear, "clear", false, "clear the driver's faults")
	p.DurationVar(&f.life, "for", 10*time.Minute, "when the faults expire, at most 24h")
	p.StringVarP(&f.output, "output", "o", "", "output format: json or yaml")
	c.MarkFlagsMutuallyExclusive("set", "clear")
	return c
}

func faults(ctx context.Context, s *shell.Shell, f faultsFlags, names []string) error {
	if len(names) == 0 {
		if f.set != "" || f.clear {
			return errors.New("which driver? write its name")
		}
		h, err := driversOf(s, f.hostFlags)
		if err != nil {
			return err
		}
		return showFaults(ctx, s, h, f.output, "")
	}
	h, err := calledDriver(s, f.hostFlags, names[0])
	if err != nil {
		return err
	}
	switch {
	case f.clear:
		if err := h.traced.Plant(ctx, names[0], "", 0); err != nil {
			return err
		}
		fmt.Fprintf(s.Out, "driver/%s has no planted faults\n", names[0])
		return nil
	case f.set != "":
		return plant(ctx, s, h, f, names[0])
	}
	return showFaults(ctx, s, h, f.output, names[0])
}

func plant(ctx context.Context, s *shell.Shell, h *hostDrivers, f faultsFlags, name string) error {
	if _, err := trace.ParseFaults(f.set); err != nil {
		return fmt.Errorf("--set: %w", err)
	}
	if f.life <= 0 || f.life > trace.MaxFor {
		return fmt.Errorf("--for %s: want a time of at most %s", f.life, trace.MaxFor)
	}
	// A misspelt name would silently have no effect.
	for _, role := range hostRoles() {
		if _, err := h.socketOf(name, role); err != nil {
			return err
		}
	}
	if err := h.traced.Plant(ctx, name, f.set, f.life); err != nil {
		return err
	}
	return showFaults(ctx, s, h, f.output, name)
}

// showFaults prints the planted faults of a driver; of all if the name is empty.
func showFaults(ctx context.Context, s *shell.Shell, h *hostDrivers, output, name string) error {
	all, err := h.traced.Faults(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(p trace.Planted) bool { return name != "" && p.Driver != name })
	if printed, err := s.PrintStructured(output, map[string]any{"faults": all}); printed {
		return err
	}
	if len(all) == 0 {
		fmt.Fprintln(s.Err, "No faults are planted")
		return nil
	}
	w := printers.GetNewTabWriter(s.Out)
	fmt.Fprintln(w, "NAME\tFAULT\tHITS\tUNTIL")
	for _, p := range all {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", p.Driver, p.Fault, p.Hits, p.Until.Format(time.RFC3339))
	}
	return w.Flush()
}

// allPlanted returns the planted faults of all drivers; none if no process on this host calls drivers, or the user may
// not query it.
func (h *hostDrivers) allPlanted(ctx context.Context) []trace.Planted {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	all, _ := h.traced.Faults(ctx)
	return all
}

// PrintPlanted prints which faults are planted on this host.
func PrintPlanted(ctx context.Context, s *shell.Shell) {
	if h, err := driversOf(s, hostFlags{}); err == nil {
		printPlanted(s, h.allPlanted(ctx))
	}
}

func printPlanted(s *shell.Shell, all []trace.Planted) {
	for _, p := range all {
		fmt.Fprintf(s.Err, "\nA fault is planted between volplane and driver %s: %s, until %s; 'volplane driver faults "+
			"%[1]s --clear' ends it\n", p.Driver, p.Fault, p.Until.Format(time.RFC3339))
	}
}
