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

// patience is how long a command waits before it says what it waits for.
const patience = 2 * time.Second

// watched is an object that can be waited for.
type watched interface {
	comparable
	metav1.Object
}

// source reads and watches objects of one type.
type source[T watched] struct {
	get   func(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// follow calls done with the object and then with each of its changes, with
// the zero value when there is none, until done says so or fails.
func follow[T watched](ctx context.Context, s source[T], name string, done func(T) (bool, error)) error {
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

// drain hands the events of one watch to done. It returns false when the
// server ended the watch.
func drain[T watched](ctx context.Context, w watch.Interface, done func(T) (bool, error)) (bool, error) {
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

// progress writes what tell returns to w, each text once, as long as work
// lasts and after patience has passed.
func progress(
	ctx context.Context, w io.Writer, tell func(context.Context) string, work func(context.Context) error,
) error {
	ctx, stop := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		tick := time.NewTicker(patience)
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
	<-told
	return err
}

// within returns a context that ends after d; zero means no limit.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
