package provisioner

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// snapshotObject has the fields of a VolumeSnapshot that the provisioner reads.
type snapshotObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Content string             `json:"boundVolumeSnapshotContentName"`
		Ready   bool               `json:"readyToUse"`
		Size    *resource.Quantity `json:"restoreSize"`
	} `json:"status"`
}

// contentObject has the fields of a VolumeSnapshotContent that the provisioner reads.
type contentObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Driver string `json:"driver"`
		Ref    struct {
			UID types.UID `json:"uid"`
		} `json:"volumeSnapshotRef"`
		Mode         corev1.PersistentVolumeMode   `json:"sourceVolumeMode"`
		NodeAffinity []corev1.TopologySelectorTerm `json:"nodeAffinity"`
	} `json:"spec"`
	Status struct {
		Handle string `json:"snapshotHandle"`
	} `json:"status"`
}

// attributes returns the VolumeAttributesClass that a claim names, or nil. It reads from the API
// server: servers before 1.34 have no such classes to watch.
func (p *provisioner) attributes(
	ctx context.Context, claim *corev1.PersistentVolumeClaim,
) (*storagev1.VolumeAttributesClass, error) {
	name := provision.AttributesOf(claim)
	if name == "" || p.Choices.WithoutAttributes {
		return nil, nil
	}
	got, err := p.Client.StorageV1().VolumeAttributesClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read VolumeAttributesClass %s: %w", name, err)
	}
	return got, nil
}

// snapshot returns the state of a snapshot. It reads from the API server: a watch of a custom
// resource that is not installed would never start.
func (p *provisioner) snapshot(ctx context.Context, namespace, name string) (provision.Snapshot, error) {
	var one snapshotObject
	out := provision.Snapshot{Installed: true}
	switch err := p.getCustom(ctx, &one, "namespaces", namespace, volume.ResourceSnapshots, name); {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		// The custom resource is not installed.
		return provision.Snapshot{}, nil
	case apierrors.IsNotFound(err):
		return out, nil
	case err != nil:
		return out, err
	}
	out.Exists, out.Ready, out.Going = true, one.Status.Ready, one.DeletionTimestamp != nil
	if one.Status.Size != nil {
		out.Bytes = one.Status.Size.Value()
	}
	if one.Status.Content == "" {
		return out, nil
	}
	var content contentObject
	if err := p.getCustom(ctx, &content, volume.ResourceSnapshotContents, one.Status.Content); err != nil {
		if apierrors.IsNotFound(err) {
			return out, nil
		}
		return out, err
	}
	// The content must refer to the snapshot, too: a user could name any content in a snapshot.
	out.Bound = content.Spec.Ref.UID == one.UID
	out.Driver, out.Handle, out.Mode = content.Spec.Driver, content.Status.Handle, content.Spec.Mode
	out.Kept = provision.KeptOn(p.view, out.Driver, &content, content.Spec.NodeAffinity)
	out.Lost = volume.IsLost(content.Annotations, out.Kept.Node)
	out.MayChangeMode = content.Annotations[volume.AnnAllowModeChange] == "true"
	return out, nil
}

func customPath(path []string) []string {
	return append([]string{"apis", volume.GroupSnapshot, "v1"}, path...)
}

// getCustom reads one or all objects of a custom resource of snapshots.
func (p *provisioner) getCustom(ctx context.Context, into any, path ...string) error {
	result := p.Client.Discovery().RESTClient().Get().AbsPath(customPath(path)...).Do(ctx)
	// Unlike Raw, Error distinguishes a missing object from a missing resource.
	err := result.Error()
	if err == nil {
		var body []byte
		if body, err = result.Raw(); err == nil {
			err = json.Unmarshal(body, into)
		}
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path[len(path)-1], err)
	}
	return nil
}
