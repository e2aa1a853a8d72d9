package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"volplane.dev/volplane/internal/cli/shell"
	decide "volplane.dev/volplane/internal/decide/orphans"
	"volplane.dev/volplane/internal/gather/orphans"
	"volplane.dev/volplane/internal/kube"
)

// driverFlags are the flags that select the drivers to query.
type driverFlags struct {
	// address is the path of a driver's socket.
	address string
	// root is the root directory of the node agent whose drivers are asked.
	root string
	// pool is the directory of the bundled driver's volumes.
	pool string
}

func (d *driverFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&d.address, "csi-address", "",
		"path of a driver's socket (default: all drivers that are registered with the node agent of this host)")
	f.StringVar(&d.root, "root-dir", "", "root directory of that node agent (default <data-dir>/node)")
	f.StringVar(&d.pool, "pool", "",
		"directory of the bundled driver's volumes, for its records (default <data-dir>/pool)")
	_ = c.MarkFlagDirname("root-dir")
	_ = c.MarkFlagDirname("pool")
}

func orphansCommand(s *shell.Shell) *cobra.Command {
	var d driverFlags
	var output string
	c := &cobra.Command{
		Use:   "orphans",
		Short: "List volumes without a PersistentVolume, and vice versa",
		Long: `List the volumes of drivers without a PersistentVolume, and the PersistentVolumes
whose volume the driver does not list. Nothing is changed.

The command reaches drivers through their sockets: on a host of the control
plane, as root, all that are registered with its node agent; elsewhere the one
of --csi-address. A volume without a PersistentVolume may belong to another
cluster that uses the same driver.`,
		Example: `  volplane orphans
  volplane orphans --csi-address /run/csi/socket -o json
  volplane adopt local.volplane.dev vol-d41d8cd98f00b204e9800998ecf8427e --claim default/data`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error { return findOrphans(cmd.Context(), s, d, output) },
	}
	d.register(c)
	c.Flags().StringVarP(&output, "output", "o", "", "output format: name, json")
	return c
}

// orphanReport is the JSON output of orphans.
type orphanReport struct {
	Drivers  []string         `json:"drivers"`
	Findings []decide.Finding `json:"findings"`
	// Creating is the number of volumes that are being created.
	Creating int `json:"making"`
	// Elsewhere is the number of objects whose volume these drivers cannot reach.
	Elsewhere int `json:"elsewhere"`
}

func findOrphans(ctx context.Context, s *shell.Shell, d driverFlags, output string) error {
	search, err := newSearch(s, d)
	if err != nil {
		return err
	}
	sockets, unasked := socketsOf(ctx, s, d)
	if len(sockets) == 0 && unasked != nil {
		return unasked
	}
	r := orphanReport{Drivers: []string{}, Findings: []decide.Finding{}}
	failed := []error{unasked}
	for _, socket := range sockets {
		found, err := search.Find(ctx, socket)
		if errors.Is(err, orphans.ErrCannotList) && d.address == "" {
			fmt.Fprintf(s.Err, "not asked: %v\n", err)
			continue
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		r.Drivers, r.Findings = append(r.Drivers, found.Driver), append(r.Findings, found.Findings...)
		r.Creating, r.Elsewhere = r.Creating+found.Creating, r.Elsewhere+found.Elsewhere
	}
	return errors.Join(printOrphans(s.Out, r, output), errors.Join(failed...))
}

func newSearch(s *shell.Shell, d driverFlags) (*orphans.Search, error) {
	client, _, err := s.Client()
	if err != nil {
		return nil, err
	}
	pool, err := s.Path(d.pool, "pool")
	if err != nil {
		return nil, err
	}
	return &orphans.Search{Client: kube.Translated(client, shell.Translation()), Records: s.Programs.Pool(pool)}, nil
}

// socketsOf returns the sockets of the drivers to query.
func socketsOf(ctx context.Context, s *shell.Shell, d driverFlags) ([]string, error) {
	if d.address != "" {
		return []string{d.address}, nil
	}
	root, err := s.RootDir(d.root)
	if err != nil {
		return nil, err
	}
	out, err := orphans.Sockets(ctx, filepath.Join(root, "plugins_registry"))
	if len(out) == 0 && err == nil {
		err = fmt.Errorf("no driver is registered in %s: run this as root on the host of the control plane, or set the "+
			"driver's socket with --csi-address", root)
	}
	return out, err
}

func printOrphans(w io.Writer, r orphanReport, output string) error {
	switch output {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case "name":
		for _, f := range r.Findings {
			name := f.Driver + "/" + decide.Printable(f.Handle)
			if f.Kind == decide.Object {
				name = "persistentvolume/" + f.Object
			}
			fmt.Fprintln(w, name)
		}
		return nil
	}
	if len(r.Findings) > 0 {
		t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
		fmt.Fprintln(t, "VOLUME\tDRIVER\tSIZE\tOBJECT\tCLAIM\tREASON")
		for _, f := range r.Findings {
			fmt.Fprintln(t, strings.Join([]string{
				decide.Printable(f.Handle), f.Driver, sizeText(f.Bytes), printableOrNone(f.Object), printableOrNone(f.Claim),
				string(f.Reason),
			}, "\t"))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
		for _, f := range r.Findings {
			fmt.Fprintf(w, "%s: %s\n", f.Reason, f.Message)
		}
	}
	return summarise(w, r)
}

func summarise(w io.Writer, r orphanReport) error {
	if len(r.Findings) == 0 && len(r.Drivers) > 0 {
		fmt.Fprintf(w, "Every volume of %s has a PersistentVolume, and every PersistentVolume has its volume.\n",
			strings.Join(r.Drivers, ", "))
	}
	if r.Creating > 0 {
		fmt.Fprintf(w, "Volumes that are being created: %d.\n", r.Creating)
	}
	if r.Elsewhere > 0 {
		fmt.Fprintf(w, "PersistentVolumes whose volume these drivers cannot reach: %d; ask the driver on a node that can.\n",
			r.Elsewhere)
	}
	return nil
}

func printableOrNone(name string) string {
	if name == "" {
		return shell.OrNone("")
	}
	return decide.Printable(name)
}

func sizeText(bytes int64) string {
	if bytes == 0 {
		return "<unknown>"
	}
	return resource.NewQuantity(bytes, resource.BinarySI).String()
}
