package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes/scheme"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	decide "volplane.dev/volplane/internal/decide/orphans"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/gather/orphans"
)

type adoptFlags struct {
	driverFlags
	claim, size, mode, class, output string
	dryRun                           bool
	modes                            []string
	request                          decide.Request
}

func adoptCommand(s *shell.Shell) *cobra.Command {
	var a adoptFlags
	c := &cobra.Command{
		Use:   "adopt DRIVER HANDLE",
		Short: "Create the PersistentVolume of an existing volume",
		Long: `Create the PersistentVolume of a volume that 'volplane orphans' lists, with the
reclaim policy Retain, and with --claim also the claim that is bound to it. The
volume itself is not changed. The command may be repeated.

The driver tells size and topology. For volumes of the bundled driver, the other
properties are known on its host; for other drivers, set them with the flags, as
the class of the volume did.`,
		Example: `  volplane adopt local.volplane.dev vol-d41d8cd98f00b204e9800998ecf8427e --claim default/data
  volplane adopt nfs.csi.k8s.io server/share/pvc-1 --access-mode ReadWriteMany --size 10Gi --attributes server=s,share=/share --csi-address /run/csi/socket`,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: objects.CompleteFirst(s, "csidriver"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("storage-class") {
				a.request.Class = &a.class
			}
			return adopt(cmd.Context(), s, a, args)
		},
	}
	a.register(c)
	_ = c.RegisterFlagCompletionFunc("storage-class", objects.CompleteNames(s, "sc"))
	return c
}

func (a *adoptFlags) register(c *cobra.Command) {
	a.driverFlags.register(c)
	f := c.Flags()
	f.StringVar(&a.claim, "claim", "", "claim to create, as NAMESPACE/NAME or NAME")
	f.StringVar(&a.request.Name, "name", "",
		"name of the PersistentVolume (default its original name, if that is known)")
	f.StringSliceVar(&a.modes, "access-mode", nil, "access mode (default ReadWriteOnce); may be repeated")
	f.StringVar(&a.size, "size", "", "size, if the driver does not report it")
	f.StringVar(&a.request.FSType, "fs-type", "", "type of the filesystem on the volume")
	f.StringVar(&a.mode, "volume-mode", "", "Filesystem or Block")
	f.StringToStringVar(&a.request.Attributes, "attributes", nil,
		"volume attributes that the driver needs in addition to those that it reports")
	f.StringVar(&a.class, "storage-class", "",
		"class of the PersistentVolume and the claim (default the bundled driver's, none for others)")
	f.BoolVar(&a.request.Force, "force", false, "adopt the volume even if it may be in use or is being created")
	shell.RegisterDryRun(c, (*shell.DryRun)(&a.dryRun), "have the API server validate everything and store nothing")
	f.StringVarP(&a.output, "output", "o", "", "output format: name, json, yaml")
	for flag, values := range map[string][]string{
		"access-mode": accessModes(), "volume-mode": {"Filesystem", "Block"},
	} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

func accessModes() []string {
	return []string{
		string(corev1.ReadWriteOnce), string(corev1.ReadWriteOncePod), string(corev1.ReadOnlyMany),
		string(corev1.ReadWriteMany),
	}
}

func adopt(ctx context.Context, s *shell.Shell, a adoptFlags, args []string) error {
	print, err := shell.Printer(a.output)
	if err != nil {
		return err
	}
	request, err := requestOf(s, a, args)
	if err != nil {
		return err
	}
	search, err := newSearch(s, a.driverFlags)
	if err != nil {
		return err
	}
	sockets, unasked := socketsOf(ctx, s, a.driverFlags)
	socket, err := search.Socket(ctx, sockets, request.Driver)
	if err != nil {
		return errors.Join(err, unasked)
	}
	done, err := search.Adopt(ctx, socket, request, a.dryRun)
	if done.Volume != nil {
		err = errors.Join(printAdoptedNames(s, done, a, print), err)
	}
	return err
}

// requestOf parses the arguments and flags. 'orphans -o name' prints DRIVER/HANDLE,
// which is unambiguous because the name of a driver contains no slash.
func requestOf(s *shell.Shell, a adoptFlags, args []string) (decide.Request, error) {
	w := a.request
	w.Driver = args[0]
	if len(args) == 2 {
		w.Handle = args[1]
	} else {
		w.Driver, w.Handle, _ = strings.Cut(args[0], "/")
	}
	if w.Driver == "" || w.Handle == "" {
		return w, errors.New("name the driver and the handle of the volume, as 'volplane orphans' shows them")
	}
	for _, m := range a.modes {
		if !slices.Contains(accessModes(), m) {
			return w, fmt.Errorf("--access-mode %q: use one of %s", m, strings.Join(accessModes(), ", "))
		}
		w.Modes = append(w.Modes, corev1.PersistentVolumeAccessMode(m))
	}
	w.Mode = corev1.PersistentVolumeMode(a.mode)
	if !slices.Contains([]corev1.PersistentVolumeMode{"", corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem},
		w.Mode) {
		return w, fmt.Errorf("--volume-mode %q: use Filesystem or Block", a.mode)
	}
	if a.size != "" {
		q, err := doors.ParseSize(a.size)
		if err != nil {
			return w, fmt.Errorf("--size: %w", err)
		}
		w.Bytes = q.Value()
	}
	var err error
	w.Claim, err = parseClaim(s, a.claim)
	return w, err
}

// parseClaim parses NAMESPACE/NAME or NAME; an empty text names no claim.
func parseClaim(s *shell.Shell, text string) (types.NamespacedName, error) {
	if text == "" {
		return types.NamespacedName{}, nil
	}
	ns, name, ok := strings.Cut(text, "/")
	if !ok {
		own, err := s.Namespace()
		return types.NamespacedName{Namespace: own, Name: text}, err
	}
	if ns == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, fmt.Errorf("--claim %q: use NAMESPACE/NAME", text)
	}
	return types.NamespacedName{Namespace: ns, Name: name}, nil
}

func printAdoptedNames(s *shell.Shell, done orphans.Adopted, a adoptFlags, print printers.ResourcePrinter) error {
	if print != nil {
		objects := []runtime.Object{done.Volume}
		if done.Claim != nil {
			objects = append(objects, done.Claim)
		}
		return printAdoptedObjects(s.Out, objects, print)
	}
	suffix := ""
	if a.dryRun {
		suffix = " (dry run)"
	}
	verb := func(changed bool) string {
		if changed {
			return "adopted"
		}
		return "unchanged"
	}
	fmt.Fprintf(s.Out, "persistentvolume/%s %s%s\n", done.Volume.Name, verb(done.Changed), suffix)
	if done.Claim != nil {
		fmt.Fprintf(s.Out, "persistentvolumeclaim/%s %s%s\n", done.Claim.Name,
			strings.ReplaceAll(verb(done.Claimed), "adopted", "created"), suffix)
	}
	return nil
}

func printAdoptedObjects(w io.Writer, objects []runtime.Object, print printers.ResourcePrinter) error {
	for _, o := range objects {
		kinds, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			return err
		}
		o.GetObjectKind().SetGroupVersionKind(kinds[0])
		if m, ok := o.(metav1.Object); ok {
			m.SetManagedFields(nil)
		}
		if err := print.PrintObj(o, w); err != nil {
			return err
		}
	}
	return nil
}
