package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/hosting/driverimport"
)

// importFlags are the flags of 'driver import'.
type importFlags struct {
	hostFlags
	from, name, imageRoot string
	programs              []string
	dryRun, replace       bool
	accounts              bool
	wait                  time.Duration
}

func importCommand(s *shell.Shell) *cobra.Command {
	var f importFlags
	c := &cobra.Command{
		Use:   "import -f FILE|DIR|-",
		Short: "Run a CSI driver on this host from its manifests for Kubernetes",
		Long: `Run a CSI driver on this host from what its vendor publishes for Kubernetes: the
manifests of its workloads with their sidecars, for example a rendered chart.
The command applies the CSIDriver, classes and other objects that mean the same
here, and runs the programs of the driver's containers as 'driver add' does. Of
the sidecars none is needed. It lists what could not be taken, and why.

Images are not pulled and no container is run: install the driver's program, and
name it with --program. With --image-root, a directory with the files of the
image, programs that the manifests name are found there.`,
		Example: `  volplane driver import -f deploy/ --program nfsplugin=/usr/local/bin/nfsplugin --dry-run
  helm template chart | volplane driver import -f - --program driver=/usr/local/bin/driver`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error { return importFrom(cmd.Context(), s, f) },
	}
	f.register(c)
	return c
}

func (f *importFlags) register(c *cobra.Command) {
	f.hostFlags.register(c)
	f.registerNode(c)
	p := c.Flags()
	p.StringVarP(&f.from, "filename", "f", "", "YAML or JSON file, directory of such files, or - for standard input")
	p.StringVar(&f.name, "name", "", "the driver's CSI name, if the manifests do not say it")
	p.StringArrayVar(&f.programs, "program", nil, "program of an image on this host, as IMAGE=PATH; may be repeated")
	p.StringVar(&f.imageRoot, "image-root", "", "directory with the files of the driver's image")
	p.BoolVar(&f.accounts, "service-accounts", true, "have the programs find the API server as the manifests' accounts")
	p.BoolVar(&f.dryRun, "dry-run", false, "print the driver's file, and change nothing")
	p.BoolVar(&f.replace, "replace", false, "change the driver if it exists and is different")
	p.DurationVar(&f.wait, "wait", time.Minute, "how long to wait until the driver is registered; 0 not to wait")
	_ = c.MarkFlagRequired("filename")
	_ = c.MarkFlagDirname("image-root")
}

func importFrom(ctx context.Context, s *shell.Shell, f importFlags) error {
	o, err := importOptions(s, f)
	if err != nil {
		return err
	}
	docs, err := objects.Read(s, f.from, false)
	if err != nil {
		return err
	}
	r := driverimport.Import(docs, o)
	for _, n := range r.Left {
		fmt.Fprintf(s.Err, "not taken: %s\n", n)
	}
	if len(r.Missing) > 0 {
		failed := []error{errors.New("the driver is not known well enough")}
		for _, n := range r.Missing {
			failed = append(failed, errors.New("  "+n.String()))
		}
		return errors.Join(failed...)
	}
	if f.dryRun {
		return printImport(s, r)
	}
	return runImport(ctx, s, f, r)
}

func importOptions(s *shell.Shell, f importFlags) (driverimport.Options, error) {
	o := driverimport.Options{
		Name: f.name, Namespace: cmp.Or(s.Flags.Namespace, metav1.NamespaceDefault), ImageRoot: f.imageRoot,
		NoAccounts: !f.accounts,
	}
	// Without a kubeconfig nothing is applied, but what the driver would be can be seen.
	if ns, err := s.Namespace(); err == nil {
		o.Namespace = ns
	}
	var err error
	if o.NodeDir, err = s.RootDir(f.root); err != nil {
		return o, err
	}
	if f.imageRoot != "" {
		if o.ImageRoot, err = s.Path(f.imageRoot, ""); err != nil {
			return o, err
		}
	}
	o.Programs, err = shell.Pairs("--program", f.programs, func(path string) (string, error) {
		words := []string{path}
		err := programOf(words)
		return words[0], err
	})
	return o, err
}

// printImport prints what an import would do.
func printImport(s *shell.Shell, r driverimport.Result) error {
	for _, n := range r.Replaced {
		fmt.Fprintf(s.Err, "not needed: %s\n", n)
	}
	for _, u := range r.Objects {
		fmt.Fprintf(s.Err, "would be applied: %s/%s\n", u.GetKind(), u.GetName())
	}
	for _, d := range r.Drivers {
		data, err := yaml.Marshal(d)
		if err != nil {
			return fmt.Errorf("print driver %s: %w", d.Name, err)
		}
		fmt.Fprintf(s.Out, "---\n%s", data)
	}
	return nil
}

// runImport applies the objects, and adds the drivers. It may be repeated.
func runImport(ctx context.Context, s *shell.Shell, f importFlags, r driverimport.Result) error {
	h, err := driversOf(s, f.hostFlags)
	if err != nil {
		return err
	}
	if err := h.reach(ctx, s, f.node); err != nil {
		return err
	}
	if h.client == nil && len(r.Objects) > 0 {
		return fmt.Errorf("the driver's objects cannot be applied: %w", h.absent)
	}
	var failed []error
	if len(r.Objects) > 0 {
		o, err := objects.Of(s)
		if err != nil {
			return err
		}
		for _, u := range r.Objects {
			name, verb, err := o.Apply(ctx, u.DeepCopy(), metav1.ApplyOptions{FieldManager: doors.FieldManager})
			if err != nil {
				failed = append(failed, fmt.Errorf("apply %s: %w", name, err))
				continue
			}
			fmt.Fprintf(s.Out, "%s %s\n", name, verb)
		}
	}
	for _, d := range r.Drivers {
		if err := h.add(ctx, d, addFlags{replace: f.replace, wait: f.wait}); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
