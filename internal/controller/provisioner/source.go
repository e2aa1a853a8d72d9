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

// snapshotObject and contentObject are what is read of the custom resources.
type snapshotObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Content string             `json:"boundVolumeSnapshotContentName"`
		Ready   bool               `json:"readyToUse"`
		Size    *resource.Quantity `json:"restoreSize"`
	} `json:"status"`
}

type contentObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Driver string `json:"driver"`
		Ref    struct {
			UID types.UID `json:"uid"`
		} `json:"volumeSnapshotRef"`
		Mode corev1.PersistentVolumeMode `json:"sourceVolumeMode"`
	} `json:"spec"`
	Status struct {
		Handle string `json:"snapshotHandle"`
	} `json:"status"`
}

// attributes asks for the class of attributes that a claim names; nil when
// there is none. It is asked for live, as servers before 1.34 have no such
// classes.
func (p *provisioner) attributes(
	ctx context.Context, claim *corev1.PersistentVolumeClaim,
) (*storagev1.VolumeAttributesClass, error) {
	name := provision.AttributesOf(claim)
	if name == "" {
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

// snapshot asks for a snapshot's state. It is asked for live: a watch of a
// custom resource that is not installed would never begin.
func (p *provisioner) snapshot(ctx context.Context, namespace, name string) (provision.Snapshot, error) {
	var one snapshotObject
	out := provision.Snapshot{Installed: true}
	switch err := p.custom(ctx, &one, "namespaces", namespace, volume.ResourceSnapshots, name); {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		// The answer is not that of a resource: there is none of the name.
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
	if err := p.custom(ctx, &content, volume.ResourceSnapshotContents, one.Status.Content); err != nil {
		if apierrors.IsNotFound(err) {
			return out, nil
		}
		return out, err
	}
	// A snapshot alone proves nothing about whose content it names.
	out.Bound = content.Spec.Ref.UID == one.UID
	out.Driver, out.Handle, out.Mode = content.Spec.Driver, content.Status.Handle, content.Spec.Mode
	out.MayChangeMode = content.Annotations[volume.AnnAllowModeChange] == "true"
	return out, nil
}

func customPath(path []string) []string {
	return append([]string{"apis", volume.GroupSnapshot, "v1"}, path...)
}

// custom reads one object, or all, of a custom resource of snapshots.
func (p *provisioner) custom(ctx context.Context, into any, path ...string) error {
	result := p.Client.Discovery().RESTClient().Get().AbsPath(customPath(path)...).Do(ctx)
	// Only Error tells an answer of the resource from one that nobody gave.
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
