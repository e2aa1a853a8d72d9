package membership

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// find removes the mark from everything that was given up with a node that is invited again: its host calls the drivers
// for that from now on, so nothing of it may be deleted without them any more. It may be repeated.
func (d *Members) find(ctx context.Context, node string) error {
	for _, path := range []string{
		"/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/volumeattachments",
		"/apis/" + volume.GroupSnapshot + "/v1/" + volume.ResourceSnapshotContents,
		"/apis/" + volume.GroupGroupSnapshot + "/v1/" + volume.ResourceGroupContents,
	} {
		if err := d.unmark(ctx, path, node); err != nil {
			return fmt.Errorf("take the annotation %s=%s from what has it: %w", volume.AnnLostWith, node, err)
		}
	}
	return nil
}

func (d *Members) unmark(ctx context.Context, path, node string) error {
	client := d.client.Discovery().RESTClient()
	said, err := client.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil
	}
	var all struct {
		Items []metav1.PartialObjectMetadata `json:"items"`
	}
	if err == nil {
		err = json.Unmarshal(said, &all)
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", path, err)
	}
	for _, o := range all.Items {
		if o.Annotations[volume.AnnLostWith] != node {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": o.UID, "annotations": map[string]any{volume.AnnLostWith: nil},
		}})
		if err == nil {
			err = client.Patch(types.MergePatchType).AbsPath(path, o.Name).Body(patch).Do(ctx).Error()
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s/%s: %w", path, o.Name, err)
		}
	}
	return nil
}
