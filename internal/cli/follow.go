package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// progressDelay is how long a command waits before it prints what it waits for.
const progressDelay = 2 * time.Second

// watchable is an object that a command can wait for.
type watchable interface {
	comparable
	metav1.Object
}

// source reads and watches objects of one type.
type source[T watchable] struct {
	get   func(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// follow calls done with the object and then with each changed version, or with the
// zero value if it does not exist, until done returns true or an error.
func follow[T watchable](ctx context.Context, s source[T], name string, done func(T) (bool, error)) error {
	var none T
	for {
		o, err := s.get(ctx, name, metav1.GetOptions{})
		version := ""
		switch {
		case apierrors.IsNotFound(err):
			o = none
		case err != nil:
			return err
		default:
			version = o.GetResourceVersion()
		}
		if ok, err := done(o); ok || err != nil {
			return err
		}
		w, err := s.watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: version})
		if err != nil {
			return err
		}
		ok, err := drain(ctx, w, done)
		w.Stop()
		if ok || err != nil {
			return err
		}
	}
}

// drain calls done for the events of one watch. It returns false if the server has
// ended the watch.
func drain[T watchable](ctx context.Context, w watch.Interface, done func(T) (bool, error)) (bool, error) {
	var none T
	for {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case e, open := <-w.ResultChan():
			o, ok := e.Object.(T)
			if !open || !ok || e.Type == watch.Error {
				return false, context.Cause(ctx)
			}
			if e.Type == watch.Deleted {
				o = none
			}
			if ok, err := done(o); ok || err != nil {
				return ok, err
			}
		}
	}
}

func podSource(client kubernetes.Interface, ns string) source[*corev1.Pod] {
	p := client.CoreV1().Pods(ns)
	return source[*corev1.Pod]{get: p.Get, watch: p.Watch}
}

// progress runs work. While it runs, after progressDelay, progress writes each new text
// of tell to w.
func progress(
	ctx context.Context, w io.Writer, tell func(context.Context) string, work func(context.Context) error,
) error {
	ctx, stop := context.WithCancel(ctx)
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		tick := time.NewTicker(progressDelay)
		defer tick.Stop()
		last := ""
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if text := tell(ctx); text != last && text != "" && ctx.Err() == nil {
				fmt.Fprintln(w, text)
				last = text
			}
		}
	}()
	err := work(ctx)
	stop()
	<-printed
	return err
}

// withTimeout returns a context that ends after d; zero means no limit.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
