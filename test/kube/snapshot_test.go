package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// shot is the driver's id of all snapshots.
const shot = "shot"

func snapshots() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: volume.GroupSnapshot, Version: "v1", Resource: volume.ResourceSnapshots}
}

func snapshotContents() schema.GroupVersionResource {
	return schema.GroupVersionResource{
		Group: volume.GroupSnapshot, Version: "v1", Resource: volume.ResourceSnapshotContents,
	}
}

// snapshot is a snapshot of a volume, ready or not.
type snapshot struct {
	ready bool
	size  string
	// content says what is wrong with the content: "" is nothing, "none" that
	// there is none.
	content string
	mode    corev1.PersistentVolumeMode
}

func (d *dice) snapshotName() string { return fmt.Sprint("s", d.IntN(3)) }

// newSnapshot creates a snapshot and its content.
func (d *dice) newSnapshot() op {
	name, mark := d.snapshotName(), d.Int()
	one := snapshot{
		ready: d.IntN(4) > 0, size: pick(d, "", "1Gi", "3Gi"),
		content: pick(d, "", "", "", "", "none", "another's", "without a handle", "of another driver"),
		mode:    pick(d, "", corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock),
	}
	text := fmt.Sprintf("make snapshot %s, ready: %v, size %q, mode %q", name, one.ready, one.size, one.mode)
	if one.content != "" {
		text += ", content: " + one.content
	}
	return op{text: text + ", touch the claims", do: func(ctx context.Context, s side, space string) error {
		if err := s.makeSnapshot(ctx, space, name, one); err != nil {
			return err
		}
		return s.touch(ctx, space, mark)
	}}
}

func (s side) makeSnapshot(ctx context.Context, space, name string, one snapshot) error {
	made, err := s.dynamic.Resource(snapshots()).Namespace(space).Create(ctx,
		object("VolumeSnapshot", name, map[string]any{
			"source": map[string]any{"persistentVolumeClaimName": "c0"},
		}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if one.content != "none" {
		if err := s.makeContent(ctx, made, one); err != nil {
			return err
		}
	}
	status := map[string]any{"readyToUse": one.ready, "boundVolumeSnapshotContentName": contentName(made)}
	if one.size != "" {
		status["restoreSize"] = one.size
	}
	made.Object["status"] = status
	_, err = s.dynamic.Resource(snapshots()).Namespace(space).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

func contentName(snapshot *unstructured.Unstructured) string {
	return "content-" + string(snapshot.GetUID())
}

func (s side) makeContent(ctx context.Context, of *unstructured.Unstructured, one snapshot) error {
	ref := map[string]any{
		"kind": "VolumeSnapshot", "namespace": of.GetNamespace(), "name": of.GetName(), "uid": string(of.GetUID()),
	}
	spec := map[string]any{
		"driver": driverName, "deletionPolicy": "Retain", "source": map[string]any{"volumeHandle": "source"},
		"volumeSnapshotRef": ref,
	}
	switch one.content {
	case "another's":
		ref["uid"] = "11111111-2222-3333-4444-555555555555"
	case "of another driver":
		spec["driver"] = "other.example.com"
	}
	if one.mode != "" {
		spec["sourceVolumeMode"] = string(one.mode)
	}
	made, err := s.dynamic.Resource(snapshotContents()).Create(ctx, object("VolumeSnapshotContent", contentName(of), spec),
		metav1.CreateOptions{})
	if err != nil || one.content == "without a handle" {
		return err
	}
	made.Object["status"] = map[string]any{"snapshotHandle": shot, "readyToUse": one.ready}
	_, err = s.dynamic.Resource(snapshotContents()).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

func object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": volume.GroupSnapshot + "/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

// changeSnapshot makes a snapshot ready, or deletes it.
func (d *dice) changeSnapshot() op {
	name, mark := d.snapshotName(), d.Int()
	if d.IntN(3) == 0 {
		return op{text: "delete snapshot " + name, do: func(ctx context.Context, s side, space string) error {
			return s.dynamic.Resource(snapshots()).Namespace(space).Delete(ctx, name, metav1.DeleteOptions{})
		}}
	}
	return op{
		text: "let snapshot " + name + " be ready, touch the claims",
		do: func(ctx context.Context, s side, space string) error {
			patch := []byte(`{"status":{"readyToUse":true}}`)
			if _, err := s.dynamic.Resource(snapshots()).Namespace(space).Patch(ctx, name, types.MergePatchType, patch,
				metav1.PatchOptions{}, "status"); err != nil {
				return err
			}
			return s.touch(ctx, space, mark)
		},
	}
}

// snapshotted adds a line for each snapshot.
func (s side) snapshotted(ctx context.Context, out state) error {
	if s.attaching {
		// There are none, and their resource may not be served yet.
		return nil
	}
	all, err := s.dynamic.Resource(snapshots()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		o := &all.Items[i]
		out[o.GetNamespace()] = append(out[o.GetNamespace()], fmt.Sprintf("snapshot %s finalizers=%v going=%v", o.GetName(),
			sorted(o.GetFinalizers()), o.GetDeletionTimestamp() != nil))
	}
	return nil
}

// removeSnapshots deletes all snapshots with their finalizers.
func (s side) removeSnapshots(ctx context.Context) error {
	switch {
	case s.snapshotting:
		return s.endSnapshots(ctx)
	case s.modifying:
		return s.endClaims(ctx)
	}
	all, err := s.dynamic.Resource(snapshots()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		o, of := &all.Items[i], s.dynamic.Resource(snapshots()).Namespace(all.Items[i].GetNamespace())
		if err := of.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil && !refused(err) {
			return err
		}
		if _, err := of.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{}); err != nil && !refused(err) {
			return err
		}
	}
	return s.dynamic.Resource(snapshotContents()).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// protectedSnapshot says whether a line differs only because Kubernetes protects
// a snapshot of which no volume is being made now: who wants one waits.
func protectedSnapshot(d difference, line string) bool {
	for _, theirs := range d.onlyTheirs {
		name, protected := snapshotIn(theirs), strings.Contains(theirs, volume.FinalizerRestoring)
		if !protected || name != snapshotIn(line) {
			continue
		}
		unprotected := strings.Replace(theirs, volume.FinalizerRestoring, "", 1)
		removed := strings.HasSuffix(theirs, " going=true") && !has(d.ours, "snapshot "+name+" ")
		source := " source=VolumeSnapshot:" + name + "."
		waits := has(d.ours, "claim ", " Pending ", source) || !has(d.ours, "claim ", source)
		return waits && (removed || slices.Contains(d.onlyOurs, unprotected))
	}
	return false
}

// snapshotIn returns the snapshot of a line, or "".
func snapshotIn(line string) string {
	rest, _ := strings.CutPrefix(line, "snapshot ")
	if rest == line {
		return ""
	}
	return strings.Fields(rest)[0]
}
