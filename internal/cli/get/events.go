package get

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/watch"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/kube"
)

type eventsOptions struct {
	all, watch, warnings bool
	output               string
}

func eventsCommand(s *shell.Shell) *cobra.Command {
	var e eventsOptions
	c := &cobra.Command{
		Use:   "events [TYPE/NAME | TYPE NAME]",
		Short: "Show what has happened lately, the newest last",
		Long: `Show what has happened lately, the newest last: of one object, or in the
namespace. An event is kept for an hour after it happened last; the log of the
control plane has more.`,
		Example: `  volplane events
  volplane events pvc/data
  volplane events -A --warnings -w`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: objects.CompleteObjects(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			return events(cmd.Context(), s, e, args)
		},
	}
	f := c.Flags()
	f.BoolVarP(&e.all, "all-namespaces", "A", false, "events of all namespaces")
	f.BoolVarP(&e.watch, "watch", "w", false, "after the list, print every new event")
	f.BoolVar(&e.warnings, "warnings", false, "only what has gone wrong")
	f.StringVarP(&e.output, "output", "o", "", "output format: json or yaml")
	c.MarkFlagsMutuallyExclusive("watch", "output")
	return c
}

func events(ctx context.Context, s *shell.Shell, e eventsOptions, args []string) error {
	client, ns, err := s.Client()
	if err != nil {
		return err
	}
	var selectors []fields.Selector
	if len(args) > 0 {
		if e.all {
			return errors.New("--all-namespaces is about all objects: omit " + strings.Join(args, " "))
		}
		var about fields.Selector
		if about, ns, err = eventsAbout(s, args); err != nil {
			return err
		}
		selectors = append(selectors, about)
	}
	if e.all {
		ns = metav1.NamespaceAll
	}
	if e.warnings {
		selectors = append(selectors, fields.OneTermEqualSelector("type", corev1.EventTypeWarning))
	}
	events := client.CoreV1().Events(ns)
	options := metav1.ListOptions{FieldSelector: fields.AndSelectors(selectors...).String()}
	list, err := events.List(ctx, options)
	if err != nil {
		return fmt.Errorf("list events: %w", err)
	}
	if err := printEvents(s, list.Items, e); err != nil || !e.watch {
		return err
	}
	options.ResourceVersion = list.ResourceVersion
	return watchEvents(ctx, s, options, events.Watch, e.all)
}

// eventsAbout returns what selects the events of one object, and their namespace.
func eventsAbout(s *shell.Shell, args []string) (fields.Selector, string, error) {
	o, err := objects.Of(s)
	if err != nil {
		return nil, "", err
	}
	targets, err := o.Targets(args)
	if err != nil {
		return nil, "", err
	}
	if len(targets) != 1 || len(targets[0].Names) != 1 {
		return nil, "", errors.New("name one object, for example: volplane events pvc/data")
	}
	about, ns := eventsOf(targets[0].Mapping, o.Namespace, targets[0].Names[0])
	return about, ns, nil
}

// eventsOf returns what selects the events of an object, and their namespace: that of an object without one is default.
func eventsOf(m *meta.RESTMapping, ns, name string) (fields.Selector, string) {
	if !objects.Namespaced(m) {
		ns = metav1.NamespaceDefault
	}
	return fields.Set{"involvedObject.kind": m.GroupVersionKind.Kind, "involvedObject.name": name}.AsSelector(), ns
}

// happened returns when an event happened last.
func happened(e *corev1.Event) time.Time {
	at := e.EventTime.Time
	if e.Series != nil {
		at = e.Series.LastObservedTime.Time
	}
	return cmp.Or(e.LastTimestamp.Time, at, e.CreationTimestamp.Time)
}

func printEvents(s *shell.Shell, items []corev1.Event, e eventsOptions) error {
	all := kube.Pointers(items)
	slices.SortStableFunc(all, func(a, b *corev1.Event) int { return happened(a).Compare(happened(b)) })
	if printed, err := s.PrintStructured(e.output, map[string]any{"events": all}); printed {
		return err
	}
	if len(all) == 0 && !e.watch {
		fmt.Fprintln(s.Err, "No events: nothing has happened in the last hour")
		return nil
	}
	return eventTable(s.Out, all, e.all, true)
}

// eventTable prints events as a table.
func eventTable(out io.Writer, all []*corev1.Event, spaces, headers bool) error {
	row, flush := shell.Table(out, spaces)
	if headers {
		row("NAMESPACE", "LAST-SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
	}
	for _, e := range all {
		row(e.Namespace, duration.HumanDuration(time.Since(happened(e))), shell.PlainLine(e.Type), shell.PlainLine(e.Reason),
			shell.PlainLine(strings.ToLower(e.InvolvedObject.Kind)+"/"+e.InvolvedObject.Name), shell.PlainLine(e.Message))
	}
	return flush()
}

// watchEvents prints each new event until ctx ends.
func watchEvents(ctx context.Context, s *shell.Shell, o metav1.ListOptions,
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error), spaces bool,
) error {
	w, err := follow(ctx, o)
	if err != nil {
		return fmt.Errorf("watch events: %w", err)
	}
	defer w.Stop()
	for change := range w.ResultChan() {
		if e, ok := change.Object.(*corev1.Event); ok && (change.Type == watch.Added || change.Type == watch.Modified) {
			if err := eventTable(s.Out, []*corev1.Event{e}, spaces, false); err != nil {
				return err
			}
		}
	}
	return nil
}
