package resizer

import (
	"context"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// infeasiblePause is how long a size that the driver has refused for good is
// left alone, unless the claim changes.
const infeasiblePause = 5 * time.Minute

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name:   "resizer",
		Inputs: kube.Read("", "persistentvolumeclaims", "persistentvolumes"),
		Outputs: []kube.Access{
			kube.Write("", "persistentvolumeclaims/status", "update"), kube.Write("", "persistentvolumes", "update"),
			kube.Write("", "secrets", "get"),
		},
	}
}

type resizer struct {
	controller.Env
	*controller.Controller
	drivers *csi.Set
	claims  *kube.Cache[*corev1.PersistentVolumeClaim]
	volumes *kube.Cache[*corev1.PersistentVolume]
}

// New returns the resizer for the drivers of a set. It must be made before the
// caches start.
func New(env controller.Env, drivers *csi.Set) *controller.Controller {
	r := &resizer{
		Env: env, drivers: drivers,
		Controller: &controller.Controller{Declaration: Declaration(), Workers: 10, RetryMin: 100 * time.Millisecond, Log: env.Log},
		claims:     env.Caches.Claims(), volumes: env.Caches.Volumes(),
	}
	r.Controller.Reconcile = r.reconcile
	r.claims.Watch(func(before, after *corev1.PersistentVolumeClaim) {
		// A refusal that we wrote ourselves is no reason to ask again.
		if after != nil && (before == nil || !sameRequest(before, after) || state(after) != corev1.PersistentVolumeClaimControllerResizeInfeasible) {
			r.wake(after)
		}
	})
	drivers.Subscribe(func(string) {
		for _, c := range r.claims.List() {
			r.wake(c)
		}
	})
	return r.Controller
}

func (r *resizer) wake(c *corev1.PersistentVolumeClaim) {
	r.Add(controller.Key{Kind: "claim", Namespace: c.Namespace, Name: c.Name})
}

func sameRequest(a, b *corev1.PersistentVolumeClaim) bool {
	return a.Spec.Resources.Requests.Storage().Cmp(*b.Spec.Resources.Requests.Storage()) == 0
}

func state(c *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

func (r *resizer) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	claim, ok := r.claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return controller.Result{}, nil
	}
	facts := r.gather(claim)
	return r.apply(ctx, facts, resize.Claim(facts))
}

func (r *resizer) gather(claim *corev1.PersistentVolumeClaim) resize.Facts {
	f := resize.Facts{Claim: claim}
	if claim.Spec.VolumeName == "" {
		return f
	}
	f.Volume, _ = r.volumes.Get(claim.Spec.VolumeName)
	if f.Volume == nil || f.Volume.Spec.CSI == nil {
		return f
	}
	if d, ok := r.drivers.Get(f.Volume.Spec.CSI.Driver); ok {
		f.Ours, f.Expands, f.NodeExpands = true, d.Controller.Expand, d.Node.Expand
	}
	return f
}

func (r *resizer) apply(ctx context.Context, f resize.Facts, p resize.Plan) (controller.Result, error) {
	claim := f.Claim
	switch p.Step {
	case resize.Begin:
		got, err := r.writeClaim(ctx, resize.Begun(claim, p.Size, metav1.Now()))
		if err != nil {
			return controller.Result{}, err
		}
		r.Events.Note(claim, p.Because)
		return r.expand(ctx, got, f, p.Size)
	case resize.Expand:
		return r.expand(ctx, claim, f, p.Size)
	case resize.Hand:
		return controller.Result{}, r.hand(ctx, claim, f.NodeExpands, p.Size)
	case resize.Nothing:
		if p.Because.Reason == volume.ReasonFailedResize {
			r.Events.Warn(claim, p.Because)
		}
	}
	return controller.Result{}, nil
}

// expand calls the driver, then writes the volume's size before the claim's:
// the node trusts the volume.
func (r *resizer) expand(ctx context.Context, claim *corev1.PersistentVolumeClaim, f resize.Facts, size resource.Quantity) (controller.Result, error) {
	node := f.NodeExpands
	if f.Expands {
		got, err := r.call(ctx, f.Volume, size)
		if err != nil {
			return r.failed(ctx, claim, size, err)
		}
		node = got.GetNodeExpansionRequired()
		if bytes := got.GetCapacityBytes(); bytes > size.Value() {
			size = *resource.NewQuantity(bytes, resource.BinarySI)
		}
	}
	v := f.Volume.DeepCopy()
	v.Spec.Capacity[corev1.ResourceStorage] = size
	got, err := r.Client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
	if err != nil {
		return controller.Result{}, fmt.Errorf("write size of volume %s: %w", v.Name, err)
	}
	r.volumes.Wrote(got)
	return controller.Result{}, r.hand(ctx, claim, node, size)
}

func (r *resizer) call(ctx context.Context, v *corev1.PersistentVolume, size resource.Quantity) (*csipb.ControllerExpandVolumeResponse, error) {
	d, ok := r.drivers.Get(v.Spec.CSI.Driver)
	if !ok {
		return nil, fmt.Errorf("driver %s has gone", v.Spec.CSI.Driver)
	}
	secret, err := kube.SecretData(ctx, r.Client, v.Spec.CSI.ControllerExpandSecretRef)
	if err != nil {
		return nil, err
	}
	return d.ControllerClient().ControllerExpandVolume(ctx, &csipb.ControllerExpandVolumeRequest{
		VolumeId: v.Spec.CSI.VolumeHandle, Secrets: secret, CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()},
	})
}

func (r *resizer) hand(ctx context.Context, claim *corev1.PersistentVolumeClaim, node bool, size resource.Quantity) error {
	if node {
		_, err := r.writeClaim(ctx, resize.Handed(claim, size, metav1.Now()))
		return err
	}
	if _, err := r.writeClaim(ctx, resize.Finished(claim, size)); err != nil {
		return err
	}
	r.Events.Note(claim, resize.Grown(claim))
	return nil
}

// failed tells a size that the driver will never give from a call that may
// work next time.
func (r *resizer) failed(ctx context.Context, claim *corev1.PersistentVolumeClaim, size resource.Quantity, cause error) (controller.Result, error) {
	text := csi.Describe(cause)
	r.Events.Warn(claim, volume.Because{Reason: volume.ReasonFailedResize, Message: text})
	switch status.Code(cause) {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		_, err := r.writeClaim(ctx, resize.Infeasible(claim, size, text, metav1.Now()))
		return controller.Result{After: infeasiblePause}, err
	}
	return controller.Result{}, fmt.Errorf("grow volume of claim %s/%s: %w", claim.Namespace, claim.Name, cause)
}

func (r *resizer) writeClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	got, err := r.Client.CoreV1().PersistentVolumeClaims(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write size of claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	r.claims.Wrote(got)
	return got, nil
}
