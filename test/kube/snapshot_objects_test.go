package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"google.golang.org/protobuf/types/known/timestamppb"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

type snapshotObject = snapshotv1.VolumeSnapshot

// mood is what the driver tells of the snapshots of a sequence.
type mood struct {
	// unready says that they are not ready to use, untimed that the driver does not tell when they were taken.
	unready, untimed bool
	// size is in GiB; below 0 is not told.
	size int64
}

func (m mood) String() string {
	return fmt.Sprintf("ready %v, with a time %v, %d GiB", !m.unready, !m.untimed, m.size+1)
}

// of returns the snapshot as the driver tells of it.
func (m mood) of(id, source string) *csipb.Snapshot {
	out := &csipb.Snapshot{SnapshotId: id, SourceVolumeId: source, ReadyToUse: !m.unready, SizeBytes: (m.size + 1) << 30}
	if !m.untimed {
		out.CreationTime = &timestamppb.Timestamp{Seconds: 1}
	}
	return out
}

// tellOfSnapshots has the driver answer as the sequences want.
func (s *storage) tellOfSnapshots() {
	s.driver.OnCall("CreateSnapshot", func(_ int, req any) csitest.Action {
		r := req.(*csipb.CreateSnapshotRequest)
		id, space := "id-"+r.GetName(), newMemory().space.FindString(r.GetSourceVolumeId())
		s.mu.Lock()
		s.spaces[id] = space
		m := s.moods[space]
		s.mu.Unlock()
		action, _ := s.action(space, "CreateSnapshot", r.GetName())
		if action.Err == nil && !action.Hang {
			action.After = true
			action.Answer = &csipb.CreateSnapshotResponse{Snapshot: m.of(id, r.GetSourceVolumeId())}
		}
		return action
	})
	s.driver.OnCall("DeleteSnapshot", func(_ int, req any) csitest.Action {
		id := req.(*csipb.DeleteSnapshotRequest).GetSnapshotId()
		action, _ := s.action(s.spaceOfSnapshot(id), "DeleteSnapshot", id)
		return action
	})
	s.driver.OnCall("ListSnapshots", func(_ int, req any) csitest.Action {
		id := req.(*csipb.ListSnapshotsRequest).GetSnapshotId()
		space := s.spaceOfSnapshot(id)
		action, _ := s.action(space, "ListSnapshots", id)
		if action.Err == nil && !action.Hang && slices.Contains(s.driver.Snapshots(), id) {
			s.mu.Lock()
			defer s.mu.Unlock()
			action.After = true
			action.Answer = &csipb.ListSnapshotsResponse{
				Entries: []*csipb.ListSnapshotsResponse_Entry{{Snapshot: s.moods[space].of(id, "")}},
			}
		}
		return action
	})
}

// spaceOfSnapshot returns the sequence of a snapshot of the driver.
func (s *storage) spaceOfSnapshot(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if space := s.spaces[id]; space != "" {
		return space
	}
	return newMemory().space.FindString(id)
}

// tell has the driver tell of the snapshots of a sequence what a mood says from now on.
func (s *storage) tell(space string, m mood) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moods[space] = m
}

// typed returns a custom resource as its type.
func typed[T any](o *unstructured.Unstructured) (*T, error) {
	out := new(T)
	return out, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out)
}

// snapshotClass is a VolumeSnapshotClass.
type snapshotClass struct {
	name, driver, policy string
	isDefault            bool
	parameters           map[string]any
}

func (s side) makeClass(ctx context.Context, c snapshotClass) error {
	o := object("VolumeSnapshotClass", c.name, nil)
	delete(o.Object, "spec")
	o.Object["driver"], o.Object["deletionPolicy"] = c.driver, c.policy
	if c.parameters != nil {
		o.Object["parameters"] = c.parameters
	}
	if c.isDefault {
		o.SetAnnotations(map[string]string{volume.AnnDefaultSnapshotClass: "true"})
	}
	_, err := s.dynamic.Resource(snapshotClasses()).Create(ctx, o, metav1.CreateOptions{})
	return err
}

// bindClaim makes a volume, at the driver as well if it is the driver's, and gives it to a claim, as a binder
// and a provisioner do. The claim stays protected, as nobody looks after that here.
func (s side) bindClaim(ctx context.Context, space, claim string, v *corev1.PersistentVolume) error {
	c, err := s.client.CoreV1().PersistentVolumeClaims(space).Get(ctx, claim, metav1.GetOptions{})
	if err != nil || c.Spec.VolumeName != "" {
		return err
	}
	if v.Spec.CSI != nil && v.Spec.CSI.Driver == driverName {
		if err := s.createAtDriver(ctx, v.Name); err != nil {
			return err
		}
	}
	if v.Spec.CSI != nil {
		v.Spec.CSI.VolumeHandle = "id-" + v.Name
	}
	v.Spec.ClaimRef = &corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: space, Name: claim, UID: c.UID,
	}
	if _, err := s.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
		return err
	}
	claims := s.client.CoreV1().PersistentVolumeClaims(space)
	if _, err := claims.Patch(ctx, claim, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"volumeName":%q}}`, v.Name),
		metav1.PatchOptions{}); err != nil {
		return err
	}
	_, err = claims.Patch(ctx, claim, types.MergePatchType, []byte(`{"status":{"phase":"Bound"}}`),
		metav1.PatchOptions{}, "status")
	return err
}

// createAtDriver has the driver make a volume.
func (s side) createAtDriver(ctx context.Context, name string) error {
	mode := csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil)
	_, err := s.storage.driver.CreateVolume(ctx,
		&csipb.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csipb.VolumeCapability{mode}})
	return err
}

// deleteAtDriver has the driver delete a snapshot or a volume.
func (s side) deleteAtDriver(ctx context.Context, snapshot, v string) error {
	if snapshot != "" {
		_, err := s.storage.driver.DeleteSnapshot(ctx, &csipb.DeleteSnapshotRequest{SnapshotId: snapshot})
		return err
	}
	_, err := s.storage.driver.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: v})
	return err
}

// takeByHand has the driver take a snapshot that no object stands for yet.
func (s side) takeByHand(ctx context.Context, space, name string) error {
	if err := s.createAtDriver(ctx, space+"-source"); err != nil {
		return err
	}
	_, err := s.storage.driver.CreateSnapshot(ctx,
		&csipb.CreateSnapshotRequest{Name: space + "-" + name, SourceVolumeId: "id-" + space + "-source"})
	return err
}

// unprotectClaim takes from a claim what the API server keeps it by.
func (s side) unprotectClaim(ctx context.Context, space, name string) error {
	return unmet(func() error {
		claims := s.client.CoreV1().PersistentVolumeClaims(space)
		c, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == volume.FinalizerClaimProtection })
		_, err = claims.Update(ctx, c, metav1.UpdateOptions{})
		return err
	})
}

// contentOf returns the name of a content: "k0" is one that somebody has made, and "s0" that of snapshot s0.
func (s side) contentOf(space, name string) string {
	if !strings.HasPrefix(name, "s") {
		return space + "-" + name
	}
	for uid, c := range s.memory.claims {
		if c == (claimName{space, name}) {
			return "snapcontent-" + string(uid)
		}
	}
	return space + "-" + name
}
