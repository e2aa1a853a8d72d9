package get

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/kube"
)

func describeCommand(s *shell.Shell) *cobra.Command {
	return &cobra.Command{
		Use:   "describe TYPE/NAME ... | TYPE NAME ...",
		Short: "Show an object, what it waits for, and what has happened to it",
		Long: `Show an object, what it waits for, and what has happened to it: the columns of
'volplane get -o wide', the answer of 'volplane why' and 'volplane events' at
once.`,
		Example: `  volplane describe pvc/data
  volplane describe node vm`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: objects.CompleteObjects(s),
		RunE:              func(cmd *cobra.Command, args []string) error { return describe(cmd.Context(), s, args) },
	}
}

func describe(ctx context.Context, s *shell.Shell, args []string) error {
	o, err := objects.Of(s)
	if err != nil {
		return err
	}
	client, _, err := s.Client()
	if err != nil {
		return err
	}
	targets, err := o.Targets(args)
	if err != nil {
		return err
	}
	first := true
	for _, t := range targets {
		if len(t.Names) == 0 {
			return errors.New("name an object, for example: volplane describe pvc/data")
		}
		for _, name := range t.Names {
			if !first {
				fmt.Fprint(s.Out, "\n\n")
			}
			first = false
			if err := describeOne(ctx, s, o, client, objects.Target{Mapping: t.Mapping, Names: []string{name}}); err != nil {
				return err
			}
		}
	}
	return nil
}

func describeOne(
	ctx context.Context, s *shell.Shell, o *objects.Client, client kubernetes.Interface, t objects.Target,
) error {
	table, err := table(ctx, o, t, getOptions{output: "wide"})
	if err != nil {
		return err
	}
	if err := printFields(s, table); err != nil {
		return err
	}
	name := t.Names[0]
	if told, found := shell.Facts(client).Chain(ctx, t.Mapping.GroupVersionKind.Kind, o.Namespace, name); found {
		fmt.Fprintln(s.Out)
		if err := chain.Render(s.Out, told, nil); err != nil {
			return err
		}
	}
	about, ns := eventsOf(t.Mapping, o.Namespace, name)
	list, err := client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: about.String()})
	if err != nil || len(list.Items) == 0 {
		return err
	}
	fmt.Fprintln(s.Out)
	return eventTable(s.Out, kube.Pointers(list.Items), false, true)
}

// printFields prints the only row of a table, a line for each column.
func printFields(s *shell.Shell, table *metav1.Table) error {
	if len(table.Rows) != 1 {
		return fmt.Errorf("the server has answered with %d objects instead of one", len(table.Rows))
	}
	w := tabwriter.NewWriter(s.Out, 0, 8, 2, ' ', 0)
	for i, cell := range table.Rows[0].Cells {
		if i < len(table.ColumnDefinitions) {
			fmt.Fprintf(w, "%s\t%s\n", strings.ToLower(table.ColumnDefinitions[i].Name), shell.PlainLine(fmt.Sprint(cell)))
		}
	}
	return w.Flush()
}
