package volumes

import (
	"context"
	"errors"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/attach"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/volume"
)

// awaitAttach looks why a volume is not attached yet, since the node is not told of an
// attach that fails: when it failed because there are too many, the driver is asked how
// many there may be.
func (p *parts) awaitAttach(ctx context.Context, f *facts, before volume.Because) error {
	if before.Reason != volume.ReasonWaitForAttach {
		return nil
	}
	va, err := p.attachmentOf(ctx, f)
	if err != nil || va == nil || !attach.NodeFull(va) {
		return err
	}
	p.Node.Full(f.Driver)
	if p.Node.Spec(f.Driver).NodeAllocatableUpdatePeriodSeconds == nil {
		return nil
	}
	return p.giveUp(ctx, f, decide.Full(f.Volume, f.Driver, f.Node, va.Status.AttachError.Message))
}

// attachmentOf reads the volume's attachment past every cache; it is nil when the API shows none to this node.
func (p *parts) attachmentOf(ctx context.Context, f *facts) (*storagev1.VolumeAttachment, error) {
	va, err := p.Client.StorageV1().VolumeAttachments().Get(ctx, attach.NameOf(f.Driver, f.Handle, f.Node),
		metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read attachment of volume %s: %w", f.Volume, err)
	}
	return va, nil
}

// giveUp ends the Pods that wait for a volume for which the node has no room. One
// that has the volume is left alone.
func (p *parts) giveUp(ctx context.Context, f *facts, b volume.Because) error {
	var failed []error
	for path, pod := range f.consumers {
		if f.Record.Target(path) == nil {
			failed = append(failed, p.Consumers.GiveUp(ctx, pod, b))
		}
	}
	return errors.Join(failed...)
}
