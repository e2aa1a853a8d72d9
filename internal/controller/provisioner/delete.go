package provisioner

import (
	"context"
	"encoding/json"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

func (p *provisioner) reconcileVolume(ctx context.Context, name string) (controller.Result, error) {
	v, ok := p.volumes.Get(name)
	if !ok {
		return controller.Result{}, nil
	}
	reclaim, why := provision.Volume(p.gatherVolume(v))
	if reclaim == provision.Delete {
		if left := p.turnToDelete(v); left > 0 {
			return controller.Result{After: left}, nil
		}
	}
	return controller.Result{}, p.applyVolume(ctx, v, reclaim, why)
}

func (p *provisioner) gatherVolume(v *corev1.PersistentVolume) provision.VolumeFacts {
	f := provision.VolumeFactsOf(p.view, v)
	if d, ok := p.Drivers.Get(provision.DeleterOf(v)); ok {
		f.Ours, f.Lacks = true, lacks(d)
	}
	return f
}

func (p *provisioner) applyVolume(
	ctx context.Context, v *corev1.PersistentVolume, reclaim provision.Reclaim, why volume.Because,
) error {
	switch reclaim {
	case provision.Adopt:
		return p.updateVolume(ctx, provision.Adopted(v))
	case provision.Disown:
		return p.disown(ctx, v)
	case provision.Delete:
		return p.deleteVolume(ctx, v)
	case provision.Keep:
	}
	switch why.Reason {
	case volume.ReasonStillAttached:
		p.Events.Note(v, why)
	case volume.ReasonFailedDelete, volume.ReasonClaimUIDMismatch:
		p.Events.Warn(v, why)
	}
	return nil
}

// disown lets the object of a volume that is to be retained go. As long as the
// log says how it was made, a restart without the object would take the volume
// for one that nobody knows of, and delete it: the finalizer stays until then.
func (p *provisioner) disown(ctx context.Context, v *corev1.PersistentVolume) error {
	if err := p.load(ctx); err != nil {
		return err
	}
	if r := v.Spec.ClaimRef; r != nil && p.log.Holds(string(r.UID)) {
		if _, open := p.log.Get(string(r.UID)); open {
			return fmt.Errorf("retain volume %s: %w", v.Name, errOpen)
		}
		if err := p.log.Sweep(ctx); err != nil {
			return err
		}
		if p.log.Holds(string(r.UID)) {
			// Somebody else writes that part of the log at this moment.
			return fmt.Errorf("retain volume %s: %w", v.Name, errOpen)
		}
	}
	return p.updateVolume(ctx, provision.Disowned(v))
}

// deleteVolume deletes the volume at the driver, then its object. A stop in
// between repeats a DeleteVolume that has nothing left to do.
func (p *provisioner) deleteVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	// The phase in the cache may be older than a claim that took the volume
	// since: what cannot be undone is asked of the API server first.
	live, err := p.Client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at volume %s: %w", v.Name, err)
	}
	if live.ResourceVersion != v.ResourceVersion {
		// The watch will tell, and the decision is made again.
		return apierrors.NewConflict(corev1.Resource("persistentvolumes"), v.Name, nil)
	}
	if err := p.unclaimed(ctx, v); err != nil {
		return err
	}
	var secret *corev1.SecretReference
	if name := v.Annotations[volume.AnnDeletionSecretName]; name != "" {
		secret = &corev1.SecretReference{Name: name, Namespace: v.Annotations[volume.AnnDeletionSecretNamespace]}
	}
	call, err := p.remove(ctx, v, v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle, secret)
	if err != nil {
		p.Events.Warn(v, provision.DeleteFailed(v, call.Told()))
		return err
	}
	return p.forget(ctx, live)
}

// unclaimed asks the API server itself whether the volume's claim is there.
func (p *provisioner) unclaimed(ctx context.Context, v *corev1.PersistentVolume) error {
	ref := v.Spec.ClaimRef
	if ref == nil {
		return nil
	}
	claim, err := p.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for claim of volume %s: %w", v.Name, err)
	case bind.Together(claim, v):
		// The watch will tell, and the decision is made again.
		return apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), claim.Name, nil)
	}
	return nil
}

// forget deletes the object of a volume that its driver has deleted: first the
// object, then in one write the finalizers that kept it.
func (p *provisioner) forget(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.DeletionTimestamp == nil {
		if err := p.volumes.Delete(ctx, v, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	patch, err := provision.Forgotten(v, p.Protects)
	if err != nil {
		return err
	}
	_, err = p.volumes.Patch(ctx, v, types.JSONPatchType, json.RawMessage(patch))
	if apierrors.IsInvalid(err) {
		// Somebody else changed the finalizers meanwhile.
		now, err := p.Client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("look at volume %s: %w", v.Name, err)
		}
		return p.updateVolume(ctx, provision.Disowned(now))
	}
	return kube.IgnoreNotFound(err)
}

func (p *provisioner) updateVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	_, err := p.volumes.Update(ctx, v)
	return kube.IgnoreNotFound(err)
}

// remove calls DeleteVolume; what does not exist is deleted.
func (p *provisioner) remove(
	ctx context.Context, about runtime.Object, driver, handle string, ref *corev1.SecretReference,
) (provision.Call, error) {
	d, ok := p.Drivers.Get(driver)
	if !ok {
		err := fmt.Errorf("%s: %w", driver, errGone)
		return callOf(err), err
	}
	secret, missing, err := kube.SecretDataLeft(ctx, p.Client, ref)
	if err != nil {
		return callOf(err), err
	}
	if missing != nil {
		p.Events.Warn(about, provision.WithoutSecret(handle, missing.Error()))
	}
	_, err = d.ControllerClient().DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: handle, Secrets: secret})
	call := callOf(err)
	switch {
	case err == nil:
	case missing != nil:
		call.Missing = missing.Error()
		err = fmt.Errorf("delete volume %s: %s; %w", handle, call.Text, missing)
	default:
		err = fmt.Errorf("delete volume %s: %w", handle, err)
	}
	return call, err
}
