package why

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/statefile"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/explain/why"
)

const (
	// stateKind is the kind that the file names.
	stateKind = "VolplaneState"
	// maxState limits the size of a file that is read, in bytes.
	maxState = 512 << 20
)

// stateFile is the content of a file of snapshot-state: the objects that why reads, the
// time, and the version of the program.
type stateFile struct {
	Kind    string `json:"kind"`
	Version string `json:"version"`
	// Namespace is the namespace of the file; empty for all namespaces.
	Namespace string `json:"namespace,omitempty"`
	state.Objects
}

func snapshotStateCommand(s *shell.Shell) *cobra.Command {
	var output string
	var force bool
	c := &cobra.Command{
		Use:   "snapshot-state FILE|-",
		Short: "Save everything that why reads to a file, for a bug report",
		Long: `Save everything that 'volplane why' reads to a file, without secrets, for a bug
report.

The file contains the claims, volumes, classes, drivers, attachments, Pods,
nodes and warnings of all namespaces or, with -n, of one. It contains no
Secrets, only the status of a Pod's containers, and only annotations about
volumes. Values of attributes, parameters and options whose names announce a
secret are replaced, also where messages repeat them. Names of objects stay:
read the file before you show it to strangers.

'volplane why --from FILE' gives the answers of that moment.`,
		Example: `  volplane snapshot-state state.yaml
  volplane snapshot-state -n web - | less
  volplane why --from state.yaml pvc/data -n web`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return snapshotState(cmd.Context(), s, args[0], output, force)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "",
		"file format: json or yaml (default by the extension of the file name)")
	c.Flags().BoolVar(&force, "force", false, "replace an existing file")
	return c
}

func snapshotState(ctx context.Context, s *shell.Shell, path, output string, force bool) error {
	if output == "" && filepath.Ext(path) == ".json" {
		output = "json"
	}
	if _, err := os.Lstat(path); err == nil && !force && path != "-" {
		return fmt.Errorf("%s already exists: choose another file, or use --force", path)
	}
	o, err := stateOf(ctx, s, s.Flags.Namespace)
	if err != nil {
		return err
	}
	data, err := encodeState(stateFile{stateKind, s.Version, s.Flags.Namespace, statefile.Clean(o)}, output)
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

// stateOf reads everything that why reads in a namespace, or in all if ns is empty.
func stateOf(ctx context.Context, s *shell.Shell, ns string) (state.Objects, error) {
	client, _, err := s.Client()
	if err != nil {
		return state.Objects{}, err
	}
	if ns != "" {
		if err := requireNamespace(ctx, client, ns); err != nil {
			return state.Objects{}, err
		}
	}
	r := shell.Facts(client)
	err = r.Everything(ctx, ns)
	return r.Objects, err
}

func encodeState(st stateFile, output string) ([]byte, error) {
	data, err := json.MarshalIndent(st, "", " ")
	if err == nil && output != "json" {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return nil, fmt.Errorf("encode state: %w", err)
	}
	return append([]byte(strings.TrimSuffix(string(data), "\n")), '\n'), nil
}

// writeState creates a file that only its owner may read. An existing file is replaced atomically.
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

// readState reads a file of snapshot-state; "-" is standard input.
func readState(s *shell.Shell, path string) (stateFile, error) {
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
	// JSON is YAML too, but the JSON decoder is faster.
	if !strings.HasPrefix(string(data), "{") {
		if data, err = yaml.YAMLToJSON(data); err != nil {
			return st, fmt.Errorf("read %s: %w", path, err)
		}
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return st, fmt.Errorf("read %s: %w", path, err)
	}
	if st.Kind != stateKind {
		return st, fmt.Errorf("%s is not a file of 'volplane snapshot-state': its kind is %q, not %s", path, st.Kind,
			stateKind)
	}
	st.dropNulls()
	return st, nil
}

// dropNulls removes null values from the lists of objects; a user may have edited the file.
func (st *stateFile) dropNulls() {
	st.Claims, st.Volumes, st.Pods = withoutNil(st.Claims), withoutNil(st.Volumes), withoutNil(st.Pods)
	st.Classes, st.Drivers, st.CSINodes = withoutNil(st.Classes), withoutNil(st.Drivers), withoutNil(st.CSINodes)
	st.Attachments, st.Nodes, st.Namespaces = withoutNil(st.Attachments), withoutNil(st.Nodes), withoutNil(st.Namespaces)
	st.Snapshots, st.SnapshotContents = withoutNil(st.Snapshots), withoutNil(st.SnapshotContents)
	st.SnapshotClasses, st.Groups = withoutNil(st.SnapshotClasses), withoutNil(st.Groups)
	st.GroupContents, st.GroupClasses = withoutNil(st.GroupContents), withoutNil(st.GroupClasses)
	st.Warnings, st.Begun, st.Leases = withoutNil(st.Warnings), withoutNil(st.Begun), withoutNil(st.Leases)
}

func withoutNil[T any](all []*T) []*T {
	return slices.DeleteFunc(all, func(o *T) bool { return o == nil })
}

// namespaceFor returns the namespace of a question: the one in asked, or else the only one of the file.
func (st *stateFile) namespaceFor(asked string) (string, error) {
	switch {
	case asked == "" && st.Namespace == "":
		return metav1.NamespaceDefault, nil
	case asked == "":
		return st.Namespace, nil
	case st.Namespace == "" || asked == st.Namespace:
		return asked, nil
	}
	return "", fmt.Errorf("the file contains only namespace %s, and nothing about %s", st.Namespace, asked)
}

// whyFrom answers a question from a file of snapshot-state.
func whyFrom(s *shell.Shell, q question, args []string) error {
	st, err := readState(s, q.from)
	if err != nil {
		return err
	}
	ns, err := st.namespaceFor(s.Flags.Namespace)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		o := st.Objects
		if !q.all {
			o = o.In(ns)
		}
		return reportCauses(s, survey.Summarize(o), q)
	}
	k, name, err := oneObject(args)
	if err != nil {
		return err
	}
	told, found := k.Tell(why.Of(st.Objects), ns, name)
	if !found {
		return fmt.Errorf("%s/%s does not exist in %s, which was written at %s", k.Name, name, q.from,
			chain.Moment(st.Now))
	}
	return reportChain(s, told, st.Objects, ns, q)
}
