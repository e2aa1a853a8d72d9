package cli

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
)

const (
	// settleTime is how long nothing has to happen before the question is asked again,
	// and maxSettle how long something may go on happening.
	settleTime, maxSettle = 200 * time.Millisecond, time.Second
	// watchRetry is how long a watch that failed is left alone.
	watchRetry = time.Second
)

// changes is a kind of objects that an answer may change with.
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

// allChanges returns the kinds that answers are made of, those of one namespace where
// they are in one; ns is empty for all.
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

// whyWatch prints the answer, and again whenever it has changed. It ends when it is
// interrupted, with the exit code of the last answer.
func (s *shell) whyWatch(ctx context.Context, q question, args []string) error {
	dirty, err := s.watchAll(ctx, q, args)
	if err != nil {
		return err
	}
	text, failed := s.whyText(ctx, q, args)
	if failed != nil && !errors.Is(failed, errProblem) {
		return failed
	}
	fmt.Fprint(s.Out, text)
	for settled(ctx, dirty) {
		next, unwell := s.whyText(ctx, q, args)
		if ctx.Err() == nil && next != text {
			fmt.Fprint(s.Out, "\n"+next)
			text, failed = next, unwell
		}
	}
	if errors.Is(failed, errProblem) {
		return errProblem
	}
	return nil
}

// watchAll marks as dirty when something happens that an answer may change with: to all
// objects of the cluster when the question is about one that is in no namespace.
func (s *shell) watchAll(ctx context.Context, q question, args []string) (<-chan struct{}, error) {
	client, ns, err := s.client()
	if err != nil {
		return nil, err
	}
	if len(args) > 0 {
		k, _, err := oneObject(args)
		if err != nil {
			return nil, err
		}
		q.all = !k.spaced
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

// whyText returns the answer as it is printed; an error that ends it is the text.
func (s *shell) whyText(ctx context.Context, q question, args []string) (string, error) {
	var out bytes.Buffer
	quiet := *s
	quiet.Out = &out
	err := quiet.whyOnce(ctx, q, args)
	if err != nil && !errors.Is(err, errProblem) {
		return "error: " + s.explain(err) + "\n", err
	}
	return out.String(), err
}

// settled waits until something has happened and then nothing for a while; false when
// the context has ended.
func settled(ctx context.Context, dirty <-chan struct{}) bool {
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

// follow marks as dirty for as long as the context lasts; started is closed when the
// first watch is under way, or cannot be. What may not be watched is left out.
func (c changes) follow(ctx context.Context, dirty chan<- struct{}, started chan struct{}) {
	mark := func() {
		select {
		case dirty <- struct{}{}:
		default:
		}
	}
	for first := true; ctx.Err() == nil; first = false {
		w, err := c.begin(ctx)
		if first {
			close(started)
		} else {
			mark() // something may have happened between two watches
		}
		if apierrors.IsForbidden(err) {
			return
		}
		if err == nil {
			drainAll(ctx, w, mark)
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
}

func (c changes) begin(ctx context.Context) (watch.Interface, error) {
	version, err := c.version(ctx)
	if err != nil {
		return nil, err
	}
	return c.watch(ctx, version)
}

// drainAll marks each event of a watch until it ends.
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
