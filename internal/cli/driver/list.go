package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/trace"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/process/redact"
)

// driverStatus is a driver of this host as 'driver list' shows it.
type driverStatus struct {
	Name string `json:"name"`
	// Class is the StorageClass that was made with the driver.
	Class string `json:"class,omitempty"`
	// Registered says that the API names the driver on this node; nil if the API cannot be asked, as Volumes, the number
	// of its PersistentVolumes, and InUse, of how many this node has said that they are in use there.
	Registered *bool           `json:"registered,omitempty"`
	Volumes    *int            `json:"volumes,omitempty"`
	InUse      *int            `json:"inUse,omitempty"`
	Processes  []processStatus `json:"processes"`
	// Faults are planted between volplane and the driver.
	Faults []trace.Planted `json:"faults,omitempty"`
	// Error is why the driver's file cannot be used.
	Error string `json:"error,omitempty"`
}

func listCommand(s *shell.Shell) *cobra.Command {
	var f hostFlags
	var output string
	c := &cobra.Command{
		Use:   "list [NAME ...]",
		Short: "List the CSI drivers that this host runs",
		Long: `List the CSI drivers that this host runs, with a line for each process: its
state, since when it has it, the number of PersistentVolumes of the driver, and
how the process ended last. 'volplane status' lists the drivers of all nodes,
also those that other programs run.

States: alive; not registered, which means that the process runs and the API
does not know the driver on this node; starting; backing off; cannot start; not
started, if nothing on this host follows the directory; ended; no answer, if
another process should run it; invalid file.`,
		Example: `  volplane driver list
  volplane driver list csi.example.com -o yaml`,
		ValidArgsFunction: completeHosted(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			return list(cmd.Context(), s, f, args, output)
		},
	}
	f.register(c)
	f.registerNode(c)
	c.Flags().StringVarP(&output, "output", "o", "", "output format: wide, name, json, yaml")
	return c
}

func list(ctx context.Context, s *shell.Shell, f hostFlags, names []string, output string) error {
	h, err := driversOf(s, f)
	if err != nil {
		return err
	}
	if output != "name" {
		if err := h.reach(ctx, s, f.node); err != nil {
			h.client, h.absent = nil, err
		}
	}
	all, err := h.list(ctx, names)
	if err != nil {
		return err
	}
	if output != "" && output != "name" {
		versions(ctx, all)
	}
	faults := h.planted(ctx, all)
	if err := printList(s, h, all, output); err != nil {
		return err
	}
	printPlanted(s, faults)
	return nil
}

// planted adds the planted faults to drivers, and returns those of all drivers, also of those without a file. If no
// process calls drivers, there are none.
func (h *hostDrivers) planted(ctx context.Context, of []driverStatus) []trace.Planted {
	all := h.allPlanted(ctx)
	for i := range of {
		for _, p := range all {
			if p.Driver == of[i].Name {
				of[i].Faults = append(of[i].Faults, p)
			}
		}
	}
	return all
}

func printList(s *shell.Shell, h *hostDrivers, all []driverStatus, output string) error {
	if printed, err := s.PrintStructured(output, map[string]any{"drivers": all}); printed {
		return err
	}
	switch {
	case output == "name":
		for _, d := range all {
			fmt.Fprintln(s.Out, "driver/"+d.Name)
		}
		return nil
	case len(all) == 0:
		fmt.Fprintf(s.Err, "No drivers found in %s: add one with 'volplane driver add'\n", h.files)
		return nil
	}
	if err := printHosted(h, all, output == "wide"); err != nil {
		return err
	}
	if h.absent != nil {
		fmt.Fprintf(s.Err, "\nVolumes and registrations are not known: %v\n", h.absent)
	}
	return nil
}

// list returns the named drivers of this host, or all, sorted by name.
func (h *hostDrivers) list(ctx context.Context, names []string) ([]driverStatus, error) {
	all, broken := h.files.Read()
	if err := broken[string(h.files)]; err != nil {
		return nil, err
	}
	known, err := h.api(ctx)
	if err != nil {
		return nil, err
	}
	out := []driverStatus{}
	for _, d := range all {
		status := known.of(d.Name)
		status.Class = d.Class
		for _, p := range d.Processes {
			status.Processes = append(status.Processes, h.look(ctx, d, p, status.Registered))
		}
		out = append(out, status)
	}
	for path, err := range broken {
		status := known.of(driverfile.NameOf(path))
		status.Error = path + ": " + err.Error()
		out = append(out, status)
	}
	slices.SortFunc(out, func(a, b driverStatus) int {
		return strings.Compare(a.Name+"\x00"+a.Error, b.Name+"\x00"+b.Error)
	})
	for _, name := range names {
		if !slices.ContainsFunc(out, func(d driverStatus) bool { return d.Name == name }) {
			return nil, fmt.Errorf("driver %s has no file in %s: see 'volplane driver list', or add it with 'volplane driver "+
				"add %s'", name, h.files, name)
		}
	}
	return slices.DeleteFunc(out, func(d driverStatus) bool {
		return len(names) > 0 && !slices.Contains(names, d.Name)
	}), nil
}

// versions queries the versions of the running processes that serve their sockets. The version of the others is
// unknown: a call to a socket that no process serves would wait until its deadline.
func versions(ctx context.Context, all []driverStatus) {
	var asked sync.WaitGroup
	for _, d := range all {
		for i := range d.Processes {
			p := &d.Processes[i]
			if !p.serves || p.State != stateAlive && p.State != stateNotRegistered {
				continue
			}
			asked.Go(func() {
				if said, err := ask(ctx, p.Socket, csi.WithNameOnly()); err == nil {
					p.Version = said.Version
				}
			})
		}
	}
	asked.Wait()
}

// apiFacts is what the API has about drivers; nil if it was not read.
type apiFacts struct {
	registered, volumes, inUse map[string]int
}

// api reads from the API about all drivers. What the user may not read is an error.
func (h *hostDrivers) api(ctx context.Context) (*apiFacts, error) {
	if h.client == nil {
		return nil, nil
	}
	out := &apiFacts{map[string]int{}, map[string]int{}, map[string]int{}}
	volumes, err := gather.Every[*corev1.PersistentVolume](ctx, "volumes", metav1.ListOptions{},
		h.client.CoreV1().PersistentVolumes().List)
	if err != nil {
		return nil, err
	}
	for _, v := range volumes {
		if v.Spec.CSI != nil {
			out.volumes[v.Spec.CSI.Driver]++
		}
	}
	return out, h.onNode(ctx, out)
}

// onNode reads from the API about this host's node, which may not exist yet.
func (h *hostDrivers) onNode(ctx context.Context, out *apiFacts) error {
	n, err := h.client.StorageV1().CSINodes().Get(ctx, h.node, metav1.GetOptions{})
	if err == nil {
		for _, d := range n.Spec.Drivers {
			out.registered[d.Name]++
		}
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("get CSINode %s: %w", h.node, err)
	}
	node, err := h.client.CoreV1().Nodes().Get(ctx, h.node, metav1.GetOptions{})
	if err == nil {
		for _, name := range node.Status.VolumesInUse {
			out.inUse[driverInUse(name)]++
		}
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("get node %s: %w", h.node, err)
	}
	return nil
}

// of returns what the API has about one driver.
func (a *apiFacts) of(driver string) driverStatus {
	out := driverStatus{Name: driver, Processes: []processStatus{}}
	if a != nil {
		registered, volumes, used := a.registered[driver] > 0, a.volumes[driver], a.inUse[driver]
		out.Registered, out.Volumes, out.InUse = &registered, &volumes, &used
	}
	return out
}

func printHosted(h *hostDrivers, all []driverStatus, wide bool) error {
	w := printers.GetNewTabWriter(h.out)
	header := "NAME\tROLES\tSTATE\tSINCE\tVOLUMES\tIN-USE\tLAST-ERROR"
	if wide {
		header += "\tVERSION\tPID\tRESTARTS\tSOCKET"
	}
	fmt.Fprintln(w, header)
	for _, d := range all {
		if d.Error != "" {
			first, _, _ := strings.Cut(d.Error, "\n")
			fmt.Fprintf(w, "%s\t<unknown>\t%s\t<unknown>\t%s\t%s\t%s\n", d.Name, stateInvalid, countText(d.Volumes),
				countText(d.InUse), first)
		}
		for _, p := range d.Processes {
			since := "<unknown>"
			if p.Since != nil && !p.Since.IsZero() {
				since = duration.HumanDuration(time.Since(*p.Since))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s", d.Name, roleText(p.Roles), p.State, since, countText(d.Volumes),
				countText(d.InUse), shell.OrNone(beginning(p.LastError, wide)))
			if wide {
				fmt.Fprintf(w, "\t%s\t%d\t%d\t%s", shell.OrNone(p.Version), p.PID, p.Restarts, p.Socket)
			}
			fmt.Fprintln(w)
		}
	}
	return w.Flush()
}

// beginning returns as much of an error as a column of a table has room for; with wide, all of it.
func beginning(text string, wide bool) string {
	const room = 80
	if wide {
		return redact.Printable(text)
	}
	return redact.Line(text, room)
}

func countText(n *int) string {
	if n == nil {
		return "<unknown>"
	}
	return fmt.Sprint(*n)
}

func roleText(roles []driverfile.Role) string {
	out := make([]string, len(roles))
	for i, r := range roles {
		out[i] = string(r)
	}
	return strings.Join(out, ",")
}
