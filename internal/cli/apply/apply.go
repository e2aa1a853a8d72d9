package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/doors"
)

func applyCommand(s *shell.Shell) *cobra.Command {
	var from objects.Sources
	var dry shell.DryRun
	var force bool
	c := &cobra.Command{
		Use:   "apply -f FILE|DIR|- ...",
		Short: "Create or change objects from files (server-side apply)",
		Args:  objects.Positional,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return applyAll(cmd.Context(), s, from, bool(dry), force)
		},
	}
	from.Register(c)
	shell.RegisterDryRun(c, &dry, "have the server validate everything and change nothing")
	c.Flags().BoolVar(&force, "force-conflicts", false, "take over fields that other programs have set")
	return c
}

func applyAll(ctx context.Context, s *shell.Shell, from objects.Sources, dryRun, force bool) error {
	docs, err := from.Objects(s)
	if err != nil {
		return err
	}
	o, err := objects.Of(s)
	if err != nil {
		return err
	}
	options := metav1.ApplyOptions{FieldManager: doors.FieldManager, Force: force}
	suffix := ""
	if dryRun {
		options.DryRun, suffix = []string{metav1.DryRunAll}, " (dry run)"
	}
	var failed []error
	for _, batch := range batches(docs) {
		for _, a := range send(ctx, o, batch, options) {
			if a.err != nil {
				failed = append(failed, fmt.Errorf("apply %s: %w", a.name, a.err))
				continue
			}
			fmt.Fprintf(s.Out, "%s %s%s\n", a.name, a.verb, suffix)
		}
	}
	return errors.Join(failed...)
}

// atOnce is how many objects are sent at the same time: each takes two requests, and the API server's time for them is
// mostly waiting.
const atOnce = 8

// batches divides objects, in their order, into those that can be sent at the same time: they are of one kind, so none
// depends on another one, and none occurs twice.
func batches(docs []*unstructured.Unstructured) [][]*unstructured.Unstructured {
	var out [][]*unstructured.Unstructured
	named := map[string]bool{}
	for _, doc := range docs {
		name := doc.GetNamespace() + "/" + doc.GetName()
		last := len(out) - 1
		if last < 0 || len(out[last]) == atOnce || named[name] ||
			out[last][0].GroupVersionKind() != doc.GroupVersionKind() {
			out, last, named = append(out, nil), last+1, map[string]bool{}
		}
		out[last], named[name] = append(out[last], doc), true
	}
	return out
}

// applied is what became of an object.
type applied struct {
	name, verb string
	err        error
}

// send sends objects at the same time, and returns what became of each.
func send(
	ctx context.Context, o *objects.Client, docs []*unstructured.Unstructured, options metav1.ApplyOptions,
) []applied {
	out := make([]applied, len(docs))
	var all sync.WaitGroup
	for i, doc := range docs {
		all.Go(func() { out[i].name, out[i].verb, out[i].err = o.Apply(ctx, doc, options) })
	}
	all.Wait()
	return out
}
