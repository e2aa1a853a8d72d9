package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/plane"
)

// measureSnapped measures the memory of controllers while many volumes exist with a snapshot of each, and nothing
// happens: volplane's controllers in one process, volplane's controllers for a cluster, as users run them, and
// Kubernetes' two controllers of snapshots.
func measureSnapped(ctx context.Context, figures map[string]any, volumes int) error {
	a, ctx, err := newWired(ctx, volumes)
	if err != nil {
		return err
	}
	defer a.close()
	if err := errors.Join(a.snapshotsServed(ctx), a.each(volumes, func(name string) error {
		return a.snapped(ctx, name)
	})); err != nil {
		return err
	}
	for _, p := range []struct {
		name string
		run  func() ([]*plane.Process, error)
	}{
		{"volplane_all", a.oursApart},
		{"volplane_controller", a.oursInACluster},
		{"kubernetes_snapshots", func() ([]*plane.Process, error) {
			a.running = nil
			err := a.theirsSnapshot(true)
			return a.running, err
		}},
	} {
		programs, err := p.run()
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := errors.Join(a.quiet(ctx), idle(figures, "snapped_"+p.name, programs)); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		for _, program := range programs {
			program.Kill()
		}
	}
	return nil
}

// snapped creates the snapshot of a wired volume and its content in their final state.
func (a *arena) snapped(ctx context.Context, name string) error {
	contents := a.dynamic.Resource(snapshotResource(volume.ResourceSnapshotContents))
	snapshots := a.dynamic.Resource(snapshotResource(volume.ResourceSnapshots)).Namespace(space)
	s := snapshotObject(volume.KindSnapshot, name)
	s.SetFinalizers([]string{volume.FinalizerSnapshotAsSource, volume.FinalizerSnapshotBound})
	s.Object["spec"] = map[string]any{
		"source": map[string]any{"persistentVolumeClaimName": name}, "volumeSnapshotClassName": class,
	}
	s, err := snapshots.Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	c := snapshotObject("VolumeSnapshotContent", "snapcontent-"+string(s.GetUID()))
	c.SetFinalizers([]string{volume.FinalizerContentBound})
	c.SetLabels(map[string]string{volume.LabelMadeBy: volume.Program})
	c.SetAnnotations(map[string]string{volume.AnnSnapshotParameters: "{}"})
	c.Object["spec"] = map[string]any{
		"deletionPolicy": "Delete", "driver": driverName, "volumeSnapshotClassName": class, "sourceVolumeMode": "Filesystem",
		"source": map[string]any{"volumeHandle": name},
		"volumeSnapshotRef": map[string]any{
			"kind": volume.KindSnapshot, "apiVersion": s.GetAPIVersion(), "namespace": space, "name": name,
			"uid": string(s.GetUID()),
		},
	}
	if _, err := contents.Create(ctx, c, metav1.CreateOptions{}); err != nil {
		return err
	}
	now := time.Now()
	return errors.Join(setStatus(ctx, contents, c, map[string]any{
		"snapshotHandle": "id-snapshot-" + string(s.GetUID()), "creationTime": now.UnixNano(), "restoreSize": 1 << 30,
		"readyToUse": true,
	}), setStatus(ctx, snapshots, s, map[string]any{
		"boundVolumeSnapshotContentName": c.GetName(), "creationTime": now.UTC().Format(time.RFC3339),
		"restoreSize": "1Gi", "readyToUse": true,
	}))
}

func setStatus(
	ctx context.Context, of dynamic.ResourceInterface, o *unstructured.Unstructured, status map[string]any,
) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = of.Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// quiet waits until nothing is written any more but leases.
func (a *arena) quiet(ctx context.Context) error {
	const pause = 10 * time.Second
	last := -1.0
	return wait.PollUntilContextCancel(ctx, pause, false, func(ctx context.Context) (bool, error) {
		all, err := a.writes(ctx)
		sum := 0.0
		for name, n := range all {
			if !strings.HasSuffix(name, " leases") {
				sum += n
			}
		}
		before := last
		last = sum
		return sum == before, err
	})
}

// oursInACluster runs volplane's controllers for a cluster, as users run them there.
func (a *arena) oursInACluster() ([]*plane.Process, error) {
	args := []string{
		"controller", "--kubeconfig=" + a.server.AdminKubeconfig(), "--csi-address=" + a.driver.socket,
		"--leader-election-namespace=default",
	}
	for _, name := range app.ClusterControllers() {
		args = append(args, "--controllers="+name)
	}
	p, err := a.run("volplane", args...)
	if err != nil {
		return nil, err
	}
	return []*plane.Process{p}, nil
}
