package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/volume"
)

// snapshotter is a peer that takes snapshots, with the number of snapshots.
type snapshotter struct {
	name              string
	snapshots, rounds int
	run               func(context.Context, *arena) error
	// taken and deleted are per second, and cpu is in milliseconds for each snapshot.
	taken, deleted, cpu []float64
}

// measureSnapshots makes volplane and Kubernetes' controllers take a snapshot of each of many volumes, and delete them.
func measureSnapshots(ctx context.Context, figures map[string]any, snapshots, rounds int) error {
	peers := []*snapshotter{
		{name: "volplane", snapshots: snapshots, rounds: rounds, run: func(ctx context.Context, a *arena) error {
			return a.ours(ctx, "snapshot-controller", "snapshotter")
		}},
		{name: "kubernetes_raised", snapshots: snapshots, rounds: rounds, run: func(_ context.Context, a *arena) error {
			return a.theirsSnapshot(true)
		}},
		{name: "kubernetes_defaults", snapshots: few, rounds: 1, run: func(_ context.Context, a *arena) error {
			return a.theirsSnapshot(false)
		}},
	}
	for round := range rounds {
		for _, p := range peers {
			if round >= p.rounds {
				continue
			}
			if err := p.measure(ctx, figures); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	ours := peers[0]
	for _, p := range peers {
		figures["snapshots_ready_per_s_"+p.name], figures["snapshots_deleted_per_s_"+p.name] = median(p.taken),
			median(p.deleted)
		figures["snapshot_cpu_ms_each_"+p.name] = median(p.cpu)
		if p != ours {
			figures["snapshots_ready_times_"+p.name] = median(ours.taken) / median(p.taken)
			figures["snapshots_deleted_times_"+p.name] = median(ours.deleted) / median(p.deleted)
			figures["snapshot_cpu_times_"+p.name] = median(p.cpu) / median(ours.cpu)
		}
	}
	return nil
}

// measure plays one round.
func (p *snapshotter) measure(ctx context.Context, figures map[string]any) error {
	// The peer is ready when it serves: a first snapshot, of a volume of its own, is created and deleted.
	a, ctx, err := newWired(ctx, p.snapshots+1)
	if err != nil {
		return err
	}
	defer a.close()
	if err := errors.Join(a.snapshotsServed(ctx), p.run(ctx, a)); err != nil {
		return err
	}
	first := []string{fmt.Sprint("c", p.snapshots)}
	if err := errors.Join(a.snap(ctx, first), a.unsnap(ctx, first)); err != nil {
		return err
	}
	return p.storm(ctx, a, figures)
}

// storm takes all snapshots, and deletes them when all are ready.
func (p *snapshotter) storm(ctx context.Context, a *arena, figures map[string]any) error {
	var all []string
	for i := range p.snapshots {
		all = append(all, fmt.Sprint("c", i))
	}
	begin, err := a.writes(ctx)
	if err != nil {
		return err
	}
	cpu, err := a.cpu()
	if err != nil {
		return err
	}
	created, removed, began := a.driver.snapped.Load(), a.driver.unsnapped.Load(), time.Now()
	if err := a.snap(ctx, all); err != nil {
		return err
	}
	p.taken = append(p.taken, float64(p.snapshots)/time.Since(began).Seconds())
	between, err := a.report(ctx, figures, "snapshot_ready_writes_each_"+p.name, begin, p.snapshots)
	if err != nil {
		return err
	}
	began = time.Now()
	if err := a.unsnap(ctx, all); err != nil {
		return err
	}
	p.deleted = append(p.deleted, float64(p.snapshots)/time.Since(began).Seconds())
	end, err := a.report(ctx, figures, "snapshot_deleted_writes_each_"+p.name, between, p.snapshots)
	if err != nil {
		return err
	}
	spent, err := a.cpu()
	n := float64(p.snapshots)
	p.cpu = append(p.cpu, milliseconds(spent-cpu)/n)
	done, refused := ofControllers(begin, end)
	// The benchmark creates and deletes each snapshot itself.
	figures["snapshot_writes_each_"+p.name], figures["snapshot_writes_refused_each_"+p.name] = done/n-2, refused/n
	figures["snapshot_create_calls_each_"+p.name] = float64(a.driver.snapped.Load()-created) / n
	figures["snapshot_delete_calls_each_"+p.name] = float64(a.driver.unsnapped.Load()-removed) / n
	return err
}

// cpu returns the processor time of this process, which has the API server and volplane's controllers in it, and of the
// programs that run.
func (a *arena) cpu() (time.Duration, error) {
	sum := time.Duration(0)
	for _, pid := range append(a.programs(), os.Getpid()) {
		u, err := readUsage(pid)
		if err != nil {
			return 0, err
		}
		sum += u.cpu
	}
	return sum, nil
}

// ofControllers returns the number of writes, events left out, between two counts of the API server.
func ofControllers(before, after map[string]float64) (done, refused float64) {
	for _, name := range slices.Collect(maps.Keys(after)) {
		n := after[name] - before[name]
		switch {
		case strings.Contains(name, " events"):
		case strings.Contains(name, " failed "):
			refused += n
		default:
			done += n
		}
	}
	return done, refused
}

// theirsSnapshot runs Kubernetes' own programs that take snapshots, with their defaults or with raised limits.
func (a *arena) theirsSnapshot(raised bool) error {
	controller := []string{"--kubeconfig=" + a.server.AdminKubeconfig()}
	if raised {
		controller = append(controller, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=100")
	}
	return a.start(map[string][]string{
		"snapshot-controller": controller, "csi-snapshotter": append(slices.Clone(controller),
			"--csi-address="+a.driver.socket),
	})
}

func snapshotResource(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: volume.GroupSnapshot, Version: "v1", Resource: resource}
}

// snapshotsServed waits until the API server serves snapshots, and creates their class.
func (a *arena) snapshotsServed(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		for _, resource := range []string{
			volume.ResourceSnapshots, volume.ResourceSnapshotContents, volume.ResourceSnapshotClasses,
		} {
			if _, err := a.dynamic.Resource(snapshotResource(resource)).List(ctx, metav1.ListOptions{}); err != nil {
				return false, nil //nolint:nilerr // it is not served yet
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	o := snapshotObject("VolumeSnapshotClass", class)
	o.Object["driver"], o.Object["deletionPolicy"] = driverName, "Delete"
	_, err = a.dynamic.Resource(snapshotResource(volume.ResourceSnapshotClasses)).Create(ctx, o, metav1.CreateOptions{})
	return err
}

func snapshotObject(kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": volume.GroupSnapshot + "/v1", "kind": kind, "metadata": map[string]any{"name": name},
	}}
}

// snap takes a snapshot of each of these claims, under the claim's name, and returns when all are ready.
func (a *arena) snap(ctx context.Context, claims []string) error {
	ready := map[string]bool{}
	done, stop := a.until(ctx, a.snapshots(), func(o any, _ bool) bool {
		s := o.(*unstructured.Unstructured)
		if is, _, _ := unstructured.NestedBool(s.Object, "status", "readyToUse"); is {
			ready[s.GetName()] = true
		}
		return len(ready) == len(claims)
	})
	defer stop()
	return errors.Join(eachOf(claims, func(name string) error {
		o := snapshotObject(volume.KindSnapshot, name)
		o.Object["spec"] = map[string]any{
			"source": map[string]any{"persistentVolumeClaimName": name}, "volumeSnapshotClassName": class,
		}
		_, err := a.dynamic.Resource(snapshotResource(volume.ResourceSnapshots)).Namespace(space).Create(ctx, o,
			metav1.CreateOptions{})
		return err
	}), done())
}

// unsnap deletes snapshots, and returns when all are gone, after the driver's snapshots.
func (a *arena) unsnap(ctx context.Context, names []string) error {
	gone := map[string]bool{}
	done, stop := a.until(ctx, a.snapshots(), func(o any, deleted bool) bool {
		if deleted {
			gone[o.(*unstructured.Unstructured).GetName()] = true
		}
		return len(gone) == len(names)
	})
	defer stop()
	return errors.Join(eachOf(names, func(name string) error {
		return a.dynamic.Resource(snapshotResource(volume.ResourceSnapshots)).Namespace(space).Delete(ctx, name,
			metav1.DeleteOptions{})
	}), done())
}

// snapshots returns an informer of all snapshots.
func (a *arena) snapshots() cache.SharedIndexInformer {
	return dynamicinformer.NewFilteredDynamicInformer(a.dynamic, snapshotResource(volume.ResourceSnapshots), space, 0,
		cache.Indexers{}, nil).Informer()
}
