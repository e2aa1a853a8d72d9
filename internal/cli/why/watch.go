package why

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/process/lifecycle"
)

const (
	// settleTime is how long no event may arrive before the answer is computed again.
	settleTime = 200 * time.Millisecond
	// maxSettle is the longest wait for settleTime to pass without an event.
	maxSettle = time.Second
	// watchRetry is the pause after a failed watch.
	watchRetry = time.Second
)

// changes lists and watches one kind of objects that answers depend on.
type changes struct {
	version func(context.Context) (string, error)
	watch   func(ctx context.Context, version string) (watch.Interface, error)
}

func changesOf[L metav1.ListInterface](
	list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error), fields string,
) changes {
	return changes{
		version: func(ctx context.Context) (string, error) {
			l, err := list(ctx, metav1.ListOptions{FieldSelector: fields, Limit: 1})
			if err != nil {
				return "", err
			}
			return l.GetResourceVersion(), nil
		},
		watch: func(ctx context.Context, version string) (watch.Interface, error) {
			return follow(ctx, metav1.ListOptions{FieldSelector: fields, ResourceVersion: version})
		},
	}
}

// allChanges returns the kinds that answers depend on, restricted to a namespace; ns is empty for all.
func allChanges(client kubernetes.Interface, ns string) []changes {
	claims, pods, events := client.CoreV1().PersistentVolumeClaims(ns), client.CoreV1().Pods(ns),
		client.CoreV1().Events(ns)
	volumes, nodes, storage := client.CoreV1().PersistentVolumes(), client.CoreV1().Nodes(), client.StorageV1()
	out := []changes{
		changesOf(claims.List, claims.Watch, ""), changesOf(pods.List, pods.Watch, ""),
		changesOf(events.List, events.Watch, "type=Warning"), changesOf(volumes.List, volumes.Watch, ""),
		changesOf(nodes.List, nodes.Watch, ""), changesOf(storage.StorageClasses().List, storage.StorageClasses().Watch, ""),
		changesOf(storage.CSIDrivers().List, storage.CSIDrivers().Watch, ""),
		changesOf(storage.CSINodes().List, storage.CSINodes().Watch, ""),
		changesOf(storage.VolumeAttachments().List, storage.VolumeAttachments().Watch, ""),
	}
	if ns != metav1.NamespaceAll && ns != metav1.NamespaceDefault {
		events := client.CoreV1().Events(metav1.NamespaceDefault)
		out = append(out, changesOf(events.List, events.Watch, "type=Warning"))
	}
	return out
}

// whyWatch prints the answer, and prints it again whenever it changes, until it is
// interrupted. It returns the error of the last answer.
func whyWatch(ctx context.Context, s *shell.Shell, q question, args []string) error {
	dirty, err := watchAll(ctx, s, q, args)
	if err != nil {
		return err
	}
	text, failed := whyText(ctx, s, q, args)
	if failed != nil && !errors.Is(failed, shell.ErrProblem) {
		return failed
	}
	fmt.Fprint(s.Out, text)
	for waitSettled(ctx, dirty) {
		next, problem := whyText(ctx, s, q, args)
		if ctx.Err() == nil && next != text {
			fmt.Fprint(s.Out, "\n"+next)
			text, failed = next, problem
		}
	}
	if errors.Is(failed, shell.ErrProblem) {
		return shell.ErrProblem
	}
	return nil
}

// watchAll returns a channel that receives when an object changes that the answer may depend on. For a question about
// an object without a namespace, it watches all namespaces.
func watchAll(ctx context.Context, s *shell.Shell, q question, args []string) (<-chan struct{}, error) {
	client, ns, err := s.Client()
	if err != nil {
		return nil, err
	}
	if len(args) > 0 {
		k, _, err := oneObject(args)
		if err != nil {
			return nil, err
		}
		q.all = !k.Namespaced
	}
	if q.all {
		ns = metav1.NamespaceAll
	}
	dirty := make(chan struct{}, 1)
	for _, c := range allChanges(client, ns) {
		started := make(chan struct{})
		go c.follow(ctx, dirty, started)
		select {
		case <-started:
		case <-ctx.Done():
			return dirty, nil
		}
	}
	return dirty, nil
}

// whyText returns the printed answer, or the text of the error.
func whyText(ctx context.Context, s *shell.Shell, q question, args []string) (string, error) {
	var out bytes.Buffer
	err := whyOnce(ctx, s.Into(&out), q, args)
	if err != nil && !errors.Is(err, shell.ErrProblem) {
		return "error: " + s.Explain(err) + "\n", err
	}
	return out.String(), err
}

// waitSettled waits for an event and then for a pause without events. It returns false when the context has ended.
func waitSettled(ctx context.Context, dirty <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-dirty:
	}
	limit := time.NewTimer(maxSettle)
	defer limit.Stop()
	for {
		quiet := time.NewTimer(settleTime)
		select {
		case <-ctx.Done():
			quiet.Stop()
			return false
		case <-dirty:
			quiet.Stop()
		case <-quiet.C:
			return true
		case <-limit.C:
			quiet.Stop()
			return true
		}
	}
}

// follow watches the objects until the context ends and reports each change to dirty. It closes started when the first
// watch is established or has failed. It ends if the user may not watch the objects.
func (c changes) follow(ctx context.Context, dirty chan<- struct{}, started chan struct{}) {
	mark := func() {
		lifecycle.Wake(dirty)
	}
	for first := true; ctx.Err() == nil; first = false {
		w, err := c.start(ctx)
		if first {
			close(started)
		} else {
			mark() // an event may have been missed between two watches
		}
		if apierrors.IsForbidden(err) {
			return
		}
		if err == nil {
			drainAll(ctx, w, mark)
			continue
		}
		lifecycle.Sleep(ctx, watchRetry)
	}
}

func (c changes) start(ctx context.Context) (watch.Interface, error) {
	version, err := c.version(ctx)
	if err != nil {
		return nil, err
	}
	return c.watch(ctx, version)
}

// drainAll calls mark for each event of a watch until the watch ends.
func drainAll(ctx context.Context, w watch.Interface, mark func()) {
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-w.ResultChan():
			if !open || e.Type == watch.Error {
				return
			}
			mark()
		}
	}
}
