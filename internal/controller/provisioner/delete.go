package provisioner

import (
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

func (p *provisioner) reconcileVolume(ctx context.Context, name string) error {
	v, ok := p.volumes.Get(name)
	if !ok {
		return nil
	}
	reclaim, why := provision.Volume(p.gatherVolume(v))
	return p.applyVolume(ctx, v, reclaim, why)
}

func (p *provisioner) gatherVolume(v *corev1.PersistentVolume) provision.VolumeFacts {
	f := provision.VolumeFacts{Volume: v}
	for _, a := range p.attachments.By(kube.AttachmentsByVolume, v.Name) {
		f.Attachments = append(f.Attachments, a.Name)
	}
	if d, ok := p.drivers.Get(v.Annotations[volume.AnnProvisionedBy]); ok {
		f.Ours, f.Lacks = true, lacks(d)
	}
	return f
}

func (p *provisioner) applyVolume(ctx context.Context, v *corev1.PersistentVolume, reclaim provision.Reclaim, why volume.Because) error {
	switch reclaim {
	case provision.Adopt:
		_, err := p.updateVolume(ctx, provision.Adopted(v))
		return err
	case provision.Disown:
		_, err := p.updateVolume(ctx, provision.Disowned(v))
		return err
	case provision.Delete:
		return p.deleteVolume(ctx, v)
	case provision.Keep:
	}
	switch why.Reason {
	case volume.ReasonStillAttached:
		p.Events.Note(v, why)
	case volume.ReasonFailedDelete:
		p.Events.Warn(v, why)
	}
	return nil
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
	var secret *corev1.SecretReference
	if name := v.Annotations[volume.AnnDeletionSecretName]; name != "" {
		secret = &corev1.SecretReference{Name: name, Namespace: v.Annotations[volume.AnnDeletionSecretNamespace]}
	}
	if err := p.remove(ctx, v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle, secret); err != nil {
		p.Events.Warn(v, provision.DeleteFailed(v, csi.Describe(err)))
		return err
	}
	if live, err = p.updateVolume(ctx, provision.Disowned(live)); err != nil {
		return err
	}
	err = p.Client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete object of volume %s: %w", v.Name, err)
	}
	return nil
}

func (p *provisioner) updateVolume(ctx context.Context, v *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	got, err := p.Client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return v, nil
	}
	if err != nil {
		return nil, fmt.Errorf("write volume %s: %w", v.Name, err)
	}
	p.volumes.Wrote(got)
	return got, nil
}

// remove calls DeleteVolume; what does not exist is deleted.
func (p *provisioner) remove(ctx context.Context, driver, handle string, ref *corev1.SecretReference) error {
	d, ok := p.drivers.Get(driver)
	if !ok {
		return fmt.Errorf("%s: %w", driver, errGone)
	}
	secret, err := kube.SecretData(ctx, p.Client, ref)
	if err != nil {
		return err
	}
	if _, err := d.ControllerClient().DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: handle, Secrets: secret}); err != nil {
		return fmt.Errorf("delete volume %s: %w", handle, err)
	}
	return nil
}
