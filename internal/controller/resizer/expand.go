package resizer

import (
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// expand calls the driver, then writes the volume's size before the claim's:
// the node trusts the volume.
func (r *resizer) expand(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, f resize.Facts, size resource.Quantity,
) (controller.Result, error) {
	node := f.NodeExpands
	if f.Expands {
		got, err := r.call(ctx, f.Volume, size)
		if err != nil {
			return r.failed(ctx, claim, f.Volume.Spec.CSI.Driver, size, err)
		}
		node = got.GetNodeExpansionRequired()
		if bytes := got.GetCapacityBytes(); bytes > size.Value() {
			size = *resource.NewQuantity(bytes, resource.BinarySI)
		}
	}
	r.forget(claim.UID)
	v := f.Volume.DeepCopy()
	v.Spec.Capacity[corev1.ResourceStorage] = size
	if _, err := r.volumes.Update(ctx, v); err != nil {
		return controller.Result{}, err
	}
	return controller.Result{}, r.hand(ctx, claim, node, size)
}

func (r *resizer) call(
	ctx context.Context, v *corev1.PersistentVolume, size resource.Quantity,
) (*csipb.ControllerExpandVolumeResponse, error) {
	d, ok := r.drivers.Get(v.Spec.CSI.Driver)
	if !ok {
		return nil, fmt.Errorf("driver %s has gone", v.Spec.CSI.Driver)
	}
	secret, err := kube.SecretData(ctx, r.Client, v.Spec.CSI.ControllerExpandSecretRef)
	if err != nil {
		return nil, err
	}
	mode, err := csi.AccessMode(v.Spec.AccessModes, d.Controller.SingleNodeMultiWriter)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	return d.ControllerClient().ControllerExpandVolume(ctx, &csipb.ControllerExpandVolumeRequest{
		VolumeId: v.Spec.CSI.VolumeHandle, Secrets: secret, CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()},
		VolumeCapability: csi.Capability(mode, cluster.IsBlock(v.Spec.VolumeMode), v.Spec.CSI.FSType, v.Spec.MountOptions),
	})
}

// hand ends the controller's half: the node goes on, or all is done.
func (r *resizer) hand(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, node bool, size resource.Quantity,
) error {
	write, why := resize.Finished(claim, size), resize.Grown(claim)
	if node {
		write, why = resize.Handed(claim, size, metav1.Now()), resize.Pending(resize.Facts{Claim: claim})
	}
	if _, err := r.claims.UpdateStatus(ctx, write); err != nil {
		return err
	}
	r.Events.Note(claim, why)
	return nil
}

// failed tells a size that the driver will never give from a call that may
// work next time.
func (r *resizer) failed(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, driver string, size resource.Quantity, cause error,
) (controller.Result, error) {
	text := csi.Describe(cause)
	r.Events.Warn(claim, resize.Failed(claim, driver, text))
	switch csi.Code(cause) {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		got, err := r.claims.UpdateStatus(ctx, resize.Impossible(claim, size, text, metav1.Now()))
		if err != nil {
			return controller.Result{}, err
		}
		return controller.Result{After: r.pause(got)}, nil
	}
	if csi.OutcomeOf(cause) == volume.Failed {
		r.refuse(claim)
	} else {
		r.uncertain(claim)
	}
	if told := resize.Refused(claim, text, metav1.Now()); told != nil {
		if _, err := r.claims.UpdateStatus(ctx, told); err != nil {
			return controller.Result{}, err
		}
	}
	return controller.Result{}, fmt.Errorf("grow volume of claim %s/%s: %w", claim.Namespace, claim.Name, cause)
}
