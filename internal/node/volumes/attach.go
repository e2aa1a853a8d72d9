package volumes

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/attach"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/volume"
)

// awaitAttach has a volume that is not attached yet looked at again, since the
// node is not told of an attach that fails: when it failed because there are
// too many, the driver is asked how many there may be.
func (v *Volumes) awaitAttach(ctx context.Context, f *facts, before volume.Because) error {
	v.work.addAfter(volume.Key(f.Driver, f.Handle), v.LookEvery)
	if before.Reason != volume.ReasonWaitForAttach {
		return nil
	}
	va, err := v.Client.StorageV1().VolumeAttachments().Get(ctx, attach.NameOf(f.Driver, f.Handle, f.Node), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return fmt.Errorf("read attachment of volume %s: %w", f.Volume, err)
	}
	e := va.Status.AttachError
	if e == nil || codes.Code(ptr.Deref(e.ErrorCode, 0)) != codes.ResourceExhausted { //nolint:gosec // gRPC's codes are small
		return nil
	}
	v.Node.Full(f.Driver)
	if v.Node.Spec(f.Driver).NodeAllocatableUpdatePeriodSeconds == nil {
		return nil
	}
	return v.giveUp(ctx, f, decide.Full(f.Volume, f.Driver, f.Node, e.Message))
}

// giveUp ends the Pods that wait for a volume for which the node has no room. One
// that has the volume is left alone.
func (v *Volumes) giveUp(ctx context.Context, f *facts, b volume.Because) error {
	var failed []error
	for path, pod := range f.consumers {
		if f.Record.Target(path) == nil {
			failed = append(failed, v.Consumers.GiveUp(ctx, pod, b))
		}
	}
	return errors.Join(failed...)
}
