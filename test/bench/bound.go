package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/app"
)

// measureBound measures how long n claims take to be bound one after the other on an idle system, by volplane and by
// Kubernetes' controllers with raised limits, and the cost of one write: of the API server, and of the disk.
func measureBound(ctx context.Context, figures map[string]any, n int) error {
	for _, peer := range []struct {
		name string
		run  func(context.Context, *arena) error
	}{
		{"volplane", func(ctx context.Context, a *arena) error { return a.ours(ctx) }},
		{"kubernetes_raised", func(_ context.Context, a *arena) error { return a.theirs(true) }},
	} {
		if err := measureOneByOne(ctx, figures, peer.name, n, peer.run); err != nil {
			return fmt.Errorf("%s: %w", peer.name, err)
		}
	}
	return nil
}

func measureOneByOne(
	ctx context.Context, figures map[string]any, name string, n int, run func(context.Context, *arena) error,
) error {
	a, ctx, err := newArena(ctx, 0)
	if err != nil {
		return err
	}
	defer a.close()
	if err := a.prepare(ctx); err != nil {
		return err
	}
	if err := run(ctx, a); err != nil {
		return err
	}
	if _, err := a.life(ctx, "first"); err != nil {
		return err
	}
	write, err := a.idle(ctx)
	if err != nil {
		return err
	}
	all := map[string][]time.Duration{}
	for i := range n {
		// They run in turn, so other work of the machine slows down all of them.
		for what, f := range map[string]func() (time.Duration, error){
			"bound": func() (time.Duration, error) { return a.life(ctx, fmt.Sprint("one", i)) },
			"write": func() (time.Duration, error) { return timed(write) },
			"sync":  func() (time.Duration, error) { return syncOnce(a.dir) },
		} {
			took, err := f()
			if err != nil {
				return err
			}
			all[what] = append(all[what], took)
		}
	}
	for what, times := range all {
		slices.Sort(times)
		figures[what+"_ms_median_"+name] = milliseconds(times[len(times)/2])
		figures[what+"_ms_p99_"+name] = milliseconds(times[len(times)*99/100])
	}
	return nil
}

// idle returns a function that writes a volume which needs no work, as a controller of volplane does.
func (a *arena) idle(ctx context.Context) (write func() error, err error) {
	client, err := kubernetes.NewForConfig(a.server.ClientConfig(app.User("binder")))
	if err != nil {
		return nil, err
	}
	if err := a.makeVolumes(ctx, 1); err != nil {
		return nil, err
	}
	volumes := client.CoreV1().PersistentVolumes()
	v, err := a.client.CoreV1().PersistentVolumes().Get(ctx, "c0", metav1.GetOptions{})
	return func() error {
		v.Annotations = map[string]string{"example.com/written": time.Now().String()}
		v, err = volumes.Update(ctx, v, metav1.UpdateOptions{})
		return err
	}, err
}

// syncOnce writes as much as etcd does for a volume, and returns how long the disk takes.
func syncOnce(dir string) (time.Duration, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return timed(func() error {
		if _, err := f.Write(make([]byte, 2<<10)); err != nil {
			return err
		}
		return f.Sync()
	})
}

func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}
