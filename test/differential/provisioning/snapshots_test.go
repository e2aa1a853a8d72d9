package provisioning

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// snapshot is a snapshot of a volume, ready or not.
type snapshot struct {
	ready bool
	size  string
	// content says what is wrong with the content: "" means nothing, and "none" that it is missing.
	content string
	mode    corev1.PersistentVolumeMode
}

func (d *provisioningDice) snapshotName() string { return fmt.Sprint("s", d.IntN(3)) }

// newSnapshot creates a snapshot and its content.
func (d *provisioningDice) newSnapshot() op {
	name, mark := d.snapshotName(), d.Int()
	one := snapshot{
		ready: d.IntN(4) > 0, size: differential.Pick(d, "", "1Gi", "3Gi"),
		content: differential.Pick(d, "", "", "", "", "none", "another's", "without a handle", "of another driver"),
		mode:    differential.Pick(d, "", corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock),
	}
	text := fmt.Sprintf("make snapshot %s, ready: %v, size %q, mode %q", name, one.ready, one.size, one.mode)
	if one.content != "" {
		text += ", content: " + one.content
	}
	return op{Text: text + ", touch the claims", Do: func(ctx context.Context, s side, space string) error {
		if err := makeSnapshot(ctx, s, space, name, one); err != nil {
			return err
		}
		return s.Topic.Touch(ctx, s, space, mark)
	}}
}

func makeSnapshot(ctx context.Context, s side, space, name string, one snapshot) error {
	made, err := s.Dynamic.Resource(upstream.Snapshots()).Namespace(space).Create(ctx,
		upstream.Object("VolumeSnapshot", name, map[string]any{
			"source": map[string]any{"persistentVolumeClaimName": "c0"},
		}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if one.content != "none" {
		if err := makeContent(ctx, s, made, one); err != nil {
			return err
		}
	}
	status := map[string]any{"readyToUse": one.ready, "boundVolumeSnapshotContentName": contentName(made)}
	if one.size != "" {
		status["restoreSize"] = one.size
	}
	made.Object["status"] = status
	_, err = s.Dynamic.Resource(upstream.Snapshots()).Namespace(space).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

func contentName(snapshot *unstructured.Unstructured) string {
	return "content-" + string(snapshot.GetUID())
}

func makeContent(ctx context.Context, s side, of *unstructured.Unstructured, one snapshot) error {
	ref := map[string]any{
		"kind": "VolumeSnapshot", "namespace": of.GetNamespace(), "name": of.GetName(), "uid": string(of.GetUID()),
	}
	spec := map[string]any{
		"driver": differential.DriverName, "deletionPolicy": "Retain", "source": map[string]any{"volumeHandle": "source"},
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
	made, err := s.Dynamic.Resource(upstream.SnapshotContents()).Create(ctx,
		upstream.Object("VolumeSnapshotContent", contentName(of), spec),
		metav1.CreateOptions{})
	if err != nil || one.content == "without a handle" {
		return err
	}
	made.Object["status"] = map[string]any{"snapshotHandle": differential.Shot, "readyToUse": one.ready}
	_, err = s.Dynamic.Resource(upstream.SnapshotContents()).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// changeSnapshot makes a snapshot ready, or deletes it.
func (d *provisioningDice) changeSnapshot() op {
	name, mark := d.snapshotName(), d.Int()
	if d.IntN(3) == 0 {
		return op{Text: "delete snapshot " + name, Do: func(ctx context.Context, s side, space string) error {
			return s.Dynamic.Resource(upstream.Snapshots()).Namespace(space).Delete(ctx, name, metav1.DeleteOptions{})
		}}
	}
	return op{
		Text: "let snapshot " + name + " be ready, touch the claims",
		Do: func(ctx context.Context, s side, space string) error {
			patch := []byte(`{"status":{"readyToUse":true}}`)
			if _, err := s.Dynamic.Resource(upstream.Snapshots()).Namespace(space).Patch(ctx, name, types.MergePatchType, patch,
				metav1.PatchOptions{}, "status"); err != nil {
				return err
			}
			return s.Topic.Touch(ctx, s, space, mark)
		},
	}
}

// snapshotted adds a line for each snapshot.
func snapshotted(ctx context.Context, s side, out state) error {
	all, err := s.Dynamic.Resource(upstream.Snapshots()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		o := &all.Items[i]
		out[o.GetNamespace()] = append(out[o.GetNamespace()], fmt.Sprintf("snapshot %s finalizers=%v going=%v", o.GetName(),
			differential.Sorted(o.GetFinalizers()), o.GetDeletionTimestamp() != nil))
	}
	return nil
}

// removeSnapshots deletes all snapshots with their finalizers, and attachments.
func removeSnapshots(ctx context.Context, s side) error {
	if err := s.Client.StorageV1().VolumeAttachments().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return err
	}
	all, err := s.Dynamic.Resource(upstream.Snapshots()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		o, of := &all.Items[i], s.Dynamic.Resource(upstream.Snapshots()).Namespace(all.Items[i].GetNamespace())
		if err := of.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil && !upstream.Refused(err) {
			return err
		}
		if _, err := of.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{}); err != nil && !upstream.Refused(err) {
			return err
		}
	}
	return s.Dynamic.Resource(upstream.SnapshotContents()).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{})
}

// protectedSnapshot says whether a line differs only because Kubernetes protects a
// snapshot from which no volume is being created now: the claim for it waits.
func protectedSnapshot(d difference, line string) bool {
	for _, theirs := range d.OnlyTheirs {
		name, protected := snapshotIn(theirs), strings.Contains(theirs, volume.FinalizerRestoring)
		if !protected || name != snapshotIn(line) {
			continue
		}
		unprotected := strings.Replace(theirs, volume.FinalizerRestoring, "", 1)
		removed := strings.HasSuffix(theirs, " going=true") && !differential.Has(d.Ours, "snapshot "+name+" ")
		source := " source=VolumeSnapshot:" + name + "."
		waits := differential.Has(d.Ours, "claim ", " Pending ", source) || !differential.Has(d.Ours, "claim ", source)
		return waits && (removed || slices.Contains(d.OnlyOurs, unprotected))
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
