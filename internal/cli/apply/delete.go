package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/kube"
)

type deleteOptions struct {
	objects.Selection
	from           objects.Sources
	wait           bool
	timeout        time.Duration
	ignoreNotFound bool
	lostFlags
}

func deleteCommand(s *shell.Shell) *cobra.Command {
	var d deleteOptions
	c := &cobra.Command{
		Use:        "delete TYPE NAME ... | TYPE/NAME ... | TYPE -l SELECTOR | -f FILE ...",
		SuggestFor: []string{"rm", "remove", "del"},
		Short:      "Delete objects, and wait until they are removed",
		Long: `Delete objects, and wait until they are removed.

A claim stays until no Pod uses it, a volume until it is detached. If that takes
more than two seconds, the command prints what it waits for.

'volplane delete node NAME --lost' gives up a host that never comes back: it says
what is lost, asks for the name again, revokes the host's identity, and lets go
its Pods, its attachments, and the volumes and snapshots that no other host has.
Their objects are then deleted like others, but no driver is asked. The command
may be interrupted and repeated.`,
		ValidArgsFunction: objects.CompleteObjects(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			if d.lost {
				return deleteLost(cmd.Context(), s, d, args)
			}
			return deleteAll(cmd.Context(), s, d, args)
		},
	}
	f := c.Flags()
	d.Register(c)
	d.from.Register(c)
	f.BoolVar(&d.wait, "wait", true, "wait until the objects are removed")
	f.DurationVar(&d.timeout, "timeout", 0, "how long to wait; 0 for no limit")
	f.BoolVar(&d.ignoreNotFound, "ignore-not-found", false, "treat an object that does not exist as deleted")
	f.BoolVar(&d.lost, "lost", false, "give up the host of a node that never comes back, with what only it has")
	f.BoolVar(&d.yes, "yes", false, "with --lost: do not ask for the name again")
	f.BoolVar(&d.force, "force", false, "with --lost: also if the node is alive")
	return c
}

// deletion is the deletion of one object.
type deletion struct {
	mapping  *meta.RESTMapping
	ns, name string
	uid      string
}

func (d deletion) String() string { return objects.PrintedName(d.mapping, d.name) }

func deleteAll(ctx context.Context, s *shell.Shell, d deleteOptions, args []string) error {
	o, err := objects.Of(s)
	if err != nil {
		return err
	}
	deletions, err := deletions(ctx, s, o, d, args)
	if err != nil {
		return err
	}
	ctx, cancel := shell.WithTimeout(ctx, d.timeout)
	defer cancel()
	var failed []error
	var left []deletion
	for _, v := range deletions {
		gone, err := request(ctx, o, &v, d.ignoreNotFound)
		switch {
		case err != nil:
			failed = append(failed, fmt.Errorf("delete %s: %w", v, err))
		case gone || !d.wait:
			fmt.Fprintf(s.Out, "%s deleted\n", v)
		default:
			left = append(left, v)
		}
	}
	for _, v := range left {
		if err := awaitGone(ctx, s, o, v); err != nil {
			failed = append(failed, err)
			continue
		}
		fmt.Fprintf(s.Out, "%s deleted\n", v)
	}
	return errors.Join(failed...)
}

// deletions returns the objects that the command line or the manifests name.
func deletions(
	ctx context.Context, s *shell.Shell, o *objects.Client, d deleteOptions, args []string,
) ([]deletion, error) {
	if len(d.from.Names) > 0 {
		if len(args) > 0 {
			return nil, objects.Positional(nil, args)
		}
		return deletionsOf(s, o, d.from)
	}
	if err := objects.FileWithoutFlag(args); err != nil {
		return nil, err
	}
	targets, err := o.Targets(args)
	if err != nil {
		return nil, err
	}
	var out []deletion
	for _, t := range targets {
		ns := o.NamespaceOf(t.Mapping, d.Selection)
		for _, name := range t.Names {
			out = append(out, deletion{mapping: t.Mapping, ns: ns, name: name})
		}
		if len(t.Names) > 0 {
			continue
		}
		if d.Labels == "" && d.Fields == "" {
			return nil, fmt.Errorf("name the %s to delete, or select them with -l", t.Mapping.Resource.Resource)
		}
		list, err := o.At(t.Mapping, ns).List(ctx, d.Options())
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			out = append(out, deletion{mapping: t.Mapping, ns: ns, name: list.Items[i].GetName()})
		}
	}
	return out, nil
}

// deletionsOf returns the objects of manifests, in reverse order, because later objects
// may use earlier ones.
func deletionsOf(s *shell.Shell, o *objects.Client, from objects.Sources) ([]deletion, error) {
	docs, err := from.Objects(s)
	if err != nil {
		return nil, err
	}
	var out []deletion
	for _, doc := range slices.Backward(docs) {
		m, err := o.Mapping(doc.GroupVersionKind())
		if err != nil {
			return nil, err
		}
		out = append(out, deletion{mapping: m, ns: o.SetNamespace(m, doc), name: doc.GetName()})
	}
	return out, nil
}

// request requests the deletion and says whether the object is already removed.
func request(ctx context.Context, o *objects.Client, v *deletion, missing bool) (bool, error) {
	client := o.At(v.mapping, v.ns)
	found, err := client.Get(ctx, v.name, metav1.GetOptions{})
	if err != nil {
		return missing && apierrors.IsNotFound(err), kube.Unless(missing && apierrors.IsNotFound(err), err)
	}
	uid := found.GetUID()
	v.uid = string(uid)
	err = client.Delete(ctx, v.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	return false, kube.Unless(apierrors.IsNotFound(err), err)
}

func awaitGone(ctx context.Context, s *shell.Shell, o *objects.Client, v deletion) error {
	client := o.At(v.mapping, v.ns)
	from := kube.Source[*unstructured.Unstructured]{
		Get: func(ctx context.Context, name string, g metav1.GetOptions) (*unstructured.Unstructured, error) {
			return client.Get(ctx, name, g)
		},
		Watch: func(ctx context.Context, l metav1.ListOptions) (watch.Interface, error) { return client.Watch(ctx, l) },
	}
	var finalizers []string
	err := shell.Progress(ctx, s.Err, func(ctx context.Context) string {
		return "waiting for " + v.String() + ": " + reason(ctx, s, v)
	},
		func(ctx context.Context) error {
			return kube.Follow(ctx, from, v.name, func(u *unstructured.Unstructured) (bool, error) {
				if u == nil || string(u.GetUID()) != v.uid {
					return true, nil
				}
				finalizers = u.GetFinalizers()
				return false, nil
			})
		})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s is still being deleted, held by %s; see 'volplane why %s'", v, holders(finalizers), v)
	}
	if err != nil {
		return fmt.Errorf("wait until %s is removed: %w", v, err)
	}
	return nil
}

func holders(finalizers []string) string {
	if len(finalizers) == 0 {
		return "its node agent or controller"
	}
	return strings.Join(finalizers, ", ")
}

// reason returns one line about what the deletion of an object waits for.
func reason(ctx context.Context, s *shell.Shell, v deletion) string {
	if client, _, err := s.Client(); err == nil {
		if text := shell.Facts(client).Headline(ctx, v.mapping.GroupVersionKind.Kind, v.ns, v.name); text != "" {
			return text
		}
	}
	return "it is being deleted"
}
