package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/test/internal/plane"
)

func measureVolumes(ctx context.Context, dir string, figures map[string]any, rounds, storm int) error {
	p, err := plane.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer p.Stop()
	client, err := p.Client()
	if err != nil {
		return err
	}
	if err := measureOne(ctx, client, figures, rounds); err != nil {
		return err
	}
	return measureStorm(ctx, client, figures, storm)
}

// measureOne measures the time from the creation of a claim to a file written in its mount, one volume
// after the other.
func measureOne(ctx context.Context, client kubernetes.Interface, figures map[string]any, rounds int) error {
	var mount, unmount []time.Duration
	for i := range rounds {
		name := fmt.Sprint("one-", i)
		begin := time.Now()
		if err := create(ctx, client, name); err != nil {
			return err
		}
		if err := waitWritable(ctx, client, name); err != nil {
			return err
		}
		mount = append(mount, time.Since(begin))
		begin = time.Now()
		if err := remove(ctx, client, []string{name}); err != nil {
			return err
		}
		unmount = append(unmount, time.Since(begin))
	}
	figures["claim_to_writable_ms"] = milliseconds(median(mount))
	figures["delete_to_gone_ms"] = milliseconds(median(unmount))
	return nil
}

func measureStorm(ctx context.Context, client kubernetes.Interface, figures map[string]any, n int) error {
	names := make([]string, n)
	begin := time.Now()
	var g errgroup.Group
	g.SetLimit(32)
	for i := range n {
		names[i] = fmt.Sprint("storm-", i)
		g.Go(func() error { return create(ctx, client, names[i]) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	mounted := map[string]bool{}
	err := plane.WaitPods(ctx, client, func(_ watch.EventType, pod *corev1.Pod) bool {
		if ok, _ := plane.Mounted(pod); ok {
			mounted[pod.Name] = true
		}
		return len(mounted) == n
	})
	if err != nil {
		return fmt.Errorf("%d of %d mounted: %w", len(mounted), n, err)
	}
	took := time.Since(begin)
	figures["storm_volumes"] = n
	figures["storm_mounted_s"] = took.Seconds()
	figures["storm_per_s"] = float64(n) / took.Seconds()
	begin = time.Now()
	if err := remove(ctx, client, names); err != nil {
		return err
	}
	figures["storm_gone_s"] = time.Since(begin).Seconds()
	return nil
}

func create(ctx context.Context, client kubernetes.Interface, name string) error {
	return createOn(ctx, client, name, "")
}

// createOn creates a claim and its Pod, on a node or wherever it is placed.
func createOn(ctx context.Context, client kubernetes.Interface, name, node string) error {
	if _, err := client.CoreV1().PersistentVolumeClaims("default").Create(ctx, plane.Claim(name, "64Mi"),
		metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := client.CoreV1().Pods("default").Create(ctx, plane.Pod(name, name, node), metav1.CreateOptions{})
	return err
}

func waitWritable(ctx context.Context, client kubernetes.Interface, name string) error {
	var path string
	err := plane.WaitPods(ctx, client, func(_ watch.EventType, pod *corev1.Pod) bool {
		path = cluster.MountPaths(pod)["data"]
		return path != "" && pod.Name == name
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(path, "written"), []byte("by the benchmark"), 0o600)
}

// remove deletes Pods and claims and waits until their volumes are gone.
func remove(ctx context.Context, client kubernetes.Interface, names []string) error {
	for _, name := range names {
		if err := client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := client.CoreV1().PersistentVolumeClaims("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	list, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, pv := range list.Items {
		if ref := pv.Spec.ClaimRef; ref != nil && slices.Contains(names, ref.Name) {
			left[pv.Name] = true
		}
	}
	if len(left) == 0 {
		return nil
	}
	return awaitDeletion(ctx, client, left, list.ResourceVersion)
}

// awaitDeletion waits until none of the volumes is left, which were listed at a version.
func awaitDeletion(ctx context.Context, client kubernetes.Interface, left map[string]bool, version string) error {
	w, err := client.CoreV1().PersistentVolumes().Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type != watch.Deleted {
			continue
		}
		delete(left, e.Object.(*corev1.PersistentVolume).Name)
		if len(left) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%d volumes left: %w", len(left), context.Cause(ctx))
}
