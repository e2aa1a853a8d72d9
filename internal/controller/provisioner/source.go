package provisioner

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// source looks for the object that a claim's data come from.
func (p *provisioner) source(ctx context.Context, claim *corev1.PersistentVolumeClaim, d *csi.Driver) (provision.Source, error) {
	s := provision.Source{Clones: d.Controller.Clone}
	var err error
	switch {
	case provision.IsSnapshot(claim):
		s.Snapshot, err = p.snapshot(ctx, claim.Namespace, claim.Spec.DataSource.Name)
	case provision.IsClone(claim):
		if s.Claim, _ = p.claims.Get(claim.Namespace + "/" + claim.Spec.DataSource.Name); s.Claim != nil {
			s.Volume, _ = p.volumes.Get(s.Claim.Spec.VolumeName)
		}
	}
	return s, err
}

// snapshot asks for a snapshot's state. It is asked for live: a watch of a
// custom resource that is not installed would never begin.
func (p *provisioner) snapshot(ctx context.Context, namespace, name string) (provision.Snapshot, error) {
	result := p.Client.Discovery().RESTClient().Get().
		AbsPath("apis", volume.GroupSnapshot, "v1", "namespaces", namespace, volume.ResourceSnapshots, name).Do(ctx)
	switch err := result.Error(); {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		// The answer is not that of a resource: there is none of the name.
		return provision.SnapshotsNotInstalled, nil
	case apierrors.IsNotFound(err):
		return provision.SnapshotMissing, nil
	case err != nil:
		return 0, fmt.Errorf("look at snapshot %s/%s: %w", namespace, name, err)
	}
	body, err := result.Raw()
	if err != nil {
		return 0, fmt.Errorf("look at snapshot %s/%s: %w", namespace, name, err)
	}
	var got struct {
		Status struct {
			ReadyToUse bool `json:"readyToUse"`
		} `json:"status"`
	}
	if err := json.Unmarshal(body, &got); err != nil {
		return 0, fmt.Errorf("read snapshot %s/%s: %w", namespace, name, err)
	}
	if !got.Status.ReadyToUse {
		return provision.SnapshotNotReady, nil
	}
	return provision.SnapshotReady, nil
}
