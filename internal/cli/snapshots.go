package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// snapshotsPath is the path of the VolumeSnapshots in the API, if their definitions
// are installed.
const snapshotsPath = "/apis/" + snapshotsVersion

const snapshotsVersion = volume.GroupSnapshot + "/v1"

// errNoSnapshots is the error of a server without VolumeSnapshots.
var errNoSnapshots = errors.New("the server has no VolumeSnapshots: " +
	"their custom resource definitions (" + snapshotsVersion + ") are not installed")

// snapshotObject has the fields of a VolumeSnapshot that why needs.
type snapshotObject struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Source struct {
			Claim string `json:"persistentVolumeClaimName"`
		} `json:"source"`
	} `json:"spec"`
	Status struct {
		Content string `json:"boundVolumeSnapshotContentName"`
		Ready   bool   `json:"readyToUse"`
		Error   struct {
			Message string `json:"message"`
		} `json:"error"`
	} `json:"status"`
}

// aboutSnapshot reads a VolumeSnapshot and what concerns its source claim.
func (r *reading) aboutSnapshot(ctx context.Context, ns, name string) error {
	request := r.client.CoreV1().RESTClient().Get()
	data, err := request.AbsPath(snapshotsPath, "namespaces", ns, volume.ResourceSnapshots, name).SetHeader("Accept",
		"application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		_, missing := r.client.Discovery().ServerResourcesForGroupVersion(snapshotsVersion)
		if apierrors.IsNotFound(missing) {
			return errNoSnapshots
		}
		return nil
	}
	if err != nil {
		return err
	}
	var s snapshotObject
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("read snapshot %s: %w", name, err)
	}
	r.Snapshots = []state.Snapshot{s.snapshot()}
	if s.Spec.Source.Claim == "" {
		return nil
	}
	return r.aboutClaim(ctx, ns, s.Spec.Source.Claim)
}

func (s *snapshotObject) snapshot() state.Snapshot {
	return state.Snapshot{
		Namespace: s.Namespace, Name: s.Name, Claim: s.Spec.Source.Claim, Content: s.Status.Content, Ready: s.Status.Ready,
		Error: s.Status.Error.Message, Deleting: s.DeletionTimestamp != nil, Finalizers: s.Finalizers,
	}
}

// snapshots reads the VolumeSnapshots of a namespace, or all. It reads none if the
// server does not have them or the user may not read them.
func (r *reading) snapshots(ns string) read {
	return func(ctx context.Context) error {
		path := []string{snapshotsPath, volume.ResourceSnapshots}
		if ns != metav1.NamespaceAll {
			path = []string{snapshotsPath, "namespaces", ns, volume.ResourceSnapshots}
		}
		request := r.client.CoreV1().RESTClient().Get().AbsPath(path...).SetHeader("Accept", "application/json")
		data, err := request.Do(ctx).Raw()
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return nil
		}
		if err != nil {
			return err
		}
		var list struct {
			Items []snapshotObject `json:"items"`
		}
		if err := json.Unmarshal(data, &list); err != nil {
			return fmt.Errorf("read snapshots: %w", err)
		}
		for i := range list.Items {
			r.Snapshots = append(r.Snapshots, list.Items[i].snapshot())
		}
		return nil
	}
}
