package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/decide/chain"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/state"
	"volplane.dev/volplane/internal/decide/statefile"
	"volplane.dev/volplane/internal/decide/why"
)

const (
	// stateKind is what a file says that it holds.
	stateKind = "VolplaneState"
	// maxState bounds what is read of one, in bytes.
	maxState = 512 << 20
)

// stateFile is what snapshot-state writes: what why reads, when it was read, and by which
// version.
type stateFile struct {
	Kind    string `json:"kind"`
	Version string `json:"version"`
	// Namespace is the only one that was read; empty when all were.
	Namespace string `json:"namespace,omitempty"`
	state.Objects
}

func (s *shell) snapshotStateCommand() *cobra.Command {
	var output string
	var force bool
	c := &cobra.Command{
		Use:   "snapshot-state FILE|-",
		Short: "Write what why reads to a file, without secrets, for a bug report",
		Long: `Write what why reads to a file, without secrets, for a bug report.

The file has the claims, volumes, classes, drivers, attachments, Pods, nodes and
warnings of all namespaces, or of one with -n, as far as 'volplane why' reads
them: no Secret, nothing of a Pod's containers but how they are, no annotation
that is not about volumes. Values of attributes, parameters and options whose
names promise a secret are replaced, also where messages repeat them. Names of
objects stay: look into the file before you show it to strangers.

'volplane why --from FILE' answers from it as it would have then.`,
		Example: `  volplane snapshot-state state.yaml
  volplane snapshot-state -n web - | less
  volplane why --from state.yaml pvc/data -n web`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.snapshotState(cmd.Context(), args[0], output, force)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "form of the file: json or yaml (else by its name, .json or another)")
	c.Flags().BoolVar(&force, "force", false, "replace a file that is there")
	return c
}

func (s *shell) snapshotState(ctx context.Context, path, output string, force bool) error {
	output, err := stateForm(path, output)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil && !force && path != "-" {
		return fmt.Errorf("%s is there already: name another file, or use --force", path)
	}
	o, err := s.stateOf(ctx, s.flags.namespace)
	if err != nil {
		return err
	}
	data, err := encodeState(stateFile{stateKind, s.version, s.flags.namespace, statefile.Clean(o)}, output)
	if err != nil {
		return err
	}
	if path == "-" {
		_, err = s.Out.Write(data)
		return err
	}
	if err := writeState(path, data, force); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	fmt.Fprintf(s.Out, "%s written: %d claims, %d pods, %d volumes and %d nodes\n",
		path, len(o.Claims), len(o.Pods), len(o.Volumes), len(o.Nodes))
	return nil
}

// stateForm returns the form of a file: what is asked for, or else what its name says.
func stateForm(path, output string) (string, error) {
	switch {
	case output == "json" || output == "yaml":
		return output, nil
	case output != "":
		return "", fmt.Errorf("unknown output %q: use json or yaml", output)
	case filepath.Ext(path) == ".json":
		return "json", nil
	}
	return "yaml", nil
}

// stateOf reads what why reads of a namespace, or of all when ns is empty.
func (s *shell) stateOf(ctx context.Context, ns string) (state.Objects, error) {
	client, _, err := s.client()
	if err != nil {
		return state.Objects{}, err
	}
	if ns != "" {
		if err := mustExist(ctx, client, ns); err != nil {
			return state.Objects{}, err
		}
	}
	r := newReading(client)
	all := func(ctx context.Context) error { return r.all(ctx, ns) }
	err = r.together(ctx, r.room, r.namespaces(ns), r.snapshots(ns), all)
	return r.Objects, err
}

func encodeState(st stateFile, output string) ([]byte, error) {
	data, err := json.MarshalIndent(st, "", " ")
	if err == nil && output == "yaml" {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return nil, fmt.Errorf("encode state: %w", err)
	}
	return append([]byte(strings.TrimSuffix(string(data), "\n")), '\n'), nil
}

// writeState makes a file that only its owner may read. One that is there is replaced
// as a whole, or not at all.
func writeState(path string, data []byte, force bool) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if force {
		return os.Rename(file.Name(), path)
	}
	return os.Link(file.Name(), path)
}

// readState reads what snapshot-state has written; "-" is standard input.
func (s *shell) readState(path string) (stateFile, error) {
	var st stateFile
	in := s.In
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return st, fmt.Errorf("open state: %w", err)
		}
		defer file.Close()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, maxState+1))
	switch {
	case err != nil:
		return st, fmt.Errorf("read %s: %w", path, err)
	case len(data) > maxState:
		return st, fmt.Errorf("read %s: longer than %d bytes", path, maxState)
	}
	// JSON is YAML too, and is read faster as what it is.
	if !strings.HasPrefix(string(data), "{") {
		if data, err = yaml.YAMLToJSON(data); err != nil {
			return st, fmt.Errorf("read %s: %w", path, err)
		}
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return st, fmt.Errorf("read %s: %w", path, err)
	}
	if st.Kind != stateKind {
		return st, fmt.Errorf("%s is not what 'volplane snapshot-state' writes: its kind is %q, not %s", path, st.Kind,
			stateKind)
	}
	st.drop()
	return st, nil
}

// drop takes away what is null where objects should be: a file may be edited.
func (st *stateFile) drop() {
	st.Claims, st.Volumes, st.Pods = there(st.Claims), there(st.Volumes), there(st.Pods)
	st.Classes, st.Drivers, st.CSINodes = there(st.Classes), there(st.Drivers), there(st.CSINodes)
	st.Attachments, st.Nodes, st.Namespaces = there(st.Attachments), there(st.Nodes), there(st.Namespaces)
	st.Warnings, st.Begun, st.Leases = there(st.Warnings), there(st.Begun), there(st.Leases)
}

func there[T any](all []*T) []*T {
	return slices.DeleteFunc(all, func(o *T) bool { return o == nil })
}

// spaceOf returns the namespace that a question to a state is about: the one that is
// asked for, or else the only one in it.
func (st *stateFile) spaceOf(asked string) (string, error) {
	switch {
	case asked == "" && st.Namespace == "":
		return metav1.NamespaceDefault, nil
	case asked == "":
		return st.Namespace, nil
	case st.Namespace == "" || asked == st.Namespace:
		return asked, nil
	}
	return "", fmt.Errorf("the state is of namespace %s only, and says nothing of %s", st.Namespace, asked)
}

// narrow keeps of the objects in namespaces those of one.
func narrow(o state.Objects, ns string) state.Objects {
	o.Claims = only(o.Claims, func(c *corev1.PersistentVolumeClaim) bool { return c.Namespace == ns })
	o.Pods = only(o.Pods, func(p *corev1.Pod) bool { return p.Namespace == ns })
	o.Warnings = only(o.Warnings, func(e *corev1.Event) bool {
		return e.Namespace == ns ||
			e.Namespace == metav1.NamespaceDefault
	})
	o.Begun = only(o.Begun, func(in *provision.Intent) bool { return in.Claim.Namespace == ns })
	return o
}

func only[T any](all []*T, wanted func(*T) bool) []*T {
	return slices.DeleteFunc(slices.Clone(all), func(o *T) bool { return !wanted(o) })
}

// whyFrom answers from a file.
func (s *shell) whyFrom(q question, args []string) error {
	st, err := s.readState(q.from)
	if err != nil {
		return err
	}
	ns, err := st.spaceOf(s.flags.namespace)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		o := st.Objects
		if !q.all {
			o = narrow(o, ns)
		}
		return s.tellCauses(o, q)
	}
	k, name, err := oneObject(args)
	if err != nil {
		return err
	}
	told, found := k.tell(why.Of(st.Objects), ns, name)
	if !found {
		return fmt.Errorf("there is no %s/%s in %s, which was written at %s", k.name, name, q.from,
			chain.Moment(st.Now))
	}
	return s.tellChain(told, st.Objects, ns, q)
}
