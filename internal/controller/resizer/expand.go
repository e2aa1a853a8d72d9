package resizer

import (
	"cmp"
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
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

// expand calls the driver, unless its volume is large enough or only the node expands volumes, and
// applies the decision about the answer.
func (r *resizer) expand(ctx context.Context, f resize.Facts, p resize.Plan) (controller.Result, error) {
	claim, a := f.Claim, resize.Answer{Answer: csi.AnswerOf(nil), NodeExpands: f.NodeExpands}
	var cause error
	if p.Step != resize.Hand && f.Expands {
		var got *csipb.ControllerExpandVolumeResponse
		got, cause = r.call(ctx, f.Volume, p.Size)
		a = resize.Answer{
			Answer: csi.AnswerOf(cause), Bytes: got.GetCapacityBytes(), NodeExpands: got.GetNodeExpansionRequired(),
		}
	}
	if a.Outcome == volume.Done {
		r.Refusals.Forget(claim.UID)
	} else {
		r.Refusals.Record(claim.UID, allocated(claim), a.Outcome == volume.Failed)
	}
	v := resize.After(f, p.Size, a, metav1.Now())
	if v.Warn {
		r.Events.WarnWith(claim, v.Because, r.Tried(claim, v.Repeat).Notes())
	}
	claim, err := r.Write(ctx, claim, v.Claim, f.Volume, v.Volume)
	if err != nil {
		return controller.Result{}, err
	}
	if !v.Warn {
		r.Events.Note(claim, v.Because)
	}
	if v.Repeat {
		return controller.Result{}, fmt.Errorf("expand volume of claim %s/%s: %w", claim.Namespace, claim.Name,
			cmp.Or(cause, csi.ErrAnswer))
	}
	return r.pauseInfeasible(claim), nil
}

func (r *resizer) call(
	ctx context.Context, v *corev1.PersistentVolume, size resource.Quantity,
) (*csipb.ControllerExpandVolumeResponse, error) {
	d, ok := r.Drivers.Get(v.Spec.CSI.Driver)
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
	ctx = csi.About(ctx, csi.Subject{Volume: v.Name, Claim: cluster.ClaimOf(v)})
	return d.ControllerClient().ControllerExpandVolume(ctx, &csipb.ControllerExpandVolumeRequest{
		VolumeId: v.Spec.CSI.VolumeHandle, Secrets: secret, CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()},
		VolumeCapability: csi.Capability(mode, cluster.IsBlock(v.Spec.VolumeMode), v.Spec.CSI.FSType, v.Spec.MountOptions),
	})
}
