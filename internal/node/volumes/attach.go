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

// checkAttachError reads why a volume is not attached yet, because a node cannot watch attachments. If the attach limit
// was the cause, the driver's limit is read again, and Pods fail if the driver wants that.
func (p *shared) checkAttachError(ctx context.Context, f *facts, before volume.Because) error {
	if before.Reason != volume.ReasonWaitForAttach {
		return nil
	}
	va, err := p.attachmentOf(ctx, f)
	if err != nil || va == nil || !attach.NodeFull(va) {
		return err
	}
	p.Node.AttachLimitReached(f.Driver)
	if p.Node.Spec(f.Driver).NodeAllocatableUpdatePeriodSeconds == nil {
		return nil
	}
	return p.giveUp(ctx, f, decide.Full(f.Volume, f.Driver, f.Node, va.Status.AttachError.Message))
}

// attachmentOf reads the volume's attachment from the API; it is nil if the API shows none to this node.
func (p *shared) attachmentOf(ctx context.Context, f *facts) (*storagev1.VolumeAttachment, error) {
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

// giveUp fails the Pods that wait for the volume. Pods that have it are left alone.
func (p *shared) giveUp(ctx context.Context, f *facts, b volume.Because) error {
	var failed []error
	for path, c := range f.consumers {
		if f.Record.Target(path) == nil {
			failed = append(failed, p.Consumers.GiveUp(ctx, c.pod, b))
		}
	}
	return errors.Join(failed...)
}
