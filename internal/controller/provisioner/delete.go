package provisioner

import (
	"context"
	"fmt"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
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
	others := !p.log.ReadsAll && !p.log.knows(provision.DeleterOf(v), provision.MadeOn(v)) || p.isOfOtherNode(v)
	if others && !p.letsGo(v) {
		return controller.Result{}, nil // it is for another process
	}
	reclaim, why := provision.Volume(p.gatherVolume(v))
	if reclaim == provision.Delete {
		if pause := p.enterDeleteLane(v); pause > 0 {
			return controller.Result{After: pause}, nil
		}
	}
	if reclaim == provision.Keep && why.Reason == volume.ReasonStillAttached {
		if pause := p.Lasts(volumeKey(v.Name), why.Reason); pause > 0 {
			return controller.Result{After: pause}, nil
		}
	}
	return controller.Result{}, p.applyVolume(ctx, v, reclaim, why)
}

// enterDeleteLane enters the lane of a call of DeleteVolume; see Controller.Enter.
func (p *provisioner) enterDeleteLane(v *corev1.PersistentVolume) time.Duration {
	lane := controller.Lane{Driver: provision.DeleterOf(v), Call: "delete"}
	if r := v.Spec.ClaimRef; r != nil {
		lane.Namespace = r.Namespace
	}
	return p.Enter(volumeKey(v.Name), lane, func(b volume.Because) { p.Events.Warn(v, b) })
}

func (p *provisioner) gatherVolume(v *corev1.PersistentVolume) provision.VolumeFacts {
	f := provision.VolumeFactsOf(p.view, v)
	f.Lost = p.letsGo(v)
	if d, ok := p.callerOf(provision.DeleterOf(v), v); ok {
		f.Reachable, f.Lacks = true, lacks(d)
	}
	return f
}

// letsGo says whether this process lets go what was lost with its node: the control plane does, and beside a driver
// every process of it, since none calls the driver for that.
func (p *provisioner) letsGo(v *corev1.PersistentVolume) bool {
	_, beside := p.Drivers.Get(provision.DeleterOf(v))
	return provision.IsLost(v) && p.Scope.Has("") && (beside || p.log.ReadsAll)
}

// callerOf returns the driver of a volume if this process calls it for the volume.
func (p *provisioner) callerOf(driver string, v *corev1.PersistentVolume) (*csi.Driver, bool) {
	d, ok := p.Drivers.Get(driver)
	return d, ok && provision.IsIn(d.Scope, d.Place, v)
}

// isOfOtherNode says whether a volume is for the provisioner of another node.
func (p *provisioner) isOfOtherNode(v *corev1.PersistentVolume) bool {
	d, ok := p.Drivers.Get(provision.DeleterOf(v))
	return ok && d.Place != nil && !provision.IsIn(d.Scope, d.Place, v)
}

func (p *provisioner) applyVolume(
	ctx context.Context, v *corev1.PersistentVolume, reclaim provision.Reclaim, why volume.Because,
) error {
	switch reclaim {
	case provision.Adopt:
		return p.changeVolume(ctx, v, provision.Adopted(v))
	case provision.Disown:
		return p.disown(ctx, v)
	case provision.Delete:
		return p.measuredDelete(v, func() error { return p.deleteVolume(ctx, v) })
	case provision.Forget:
		live, err := p.free(ctx, v)
		if live == nil {
			return err
		}
		p.Events.Warn(v, why)
		_, err = p.deleteObject(ctx, live)
		return err
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

// disown removes the finalizer from a volume that is to be retained, when no log has an intent of
// it any more: if the object were deleted before, the provisioner would take the intent for one
// whose volume was never saved after a restart, and delete the volume.
func (p *provisioner) disown(ctx context.Context, v *corev1.PersistentVolume) error {
	if err := p.load(ctx); err != nil {
		return err
	}
	if r := v.Spec.ClaimRef; r != nil {
		others := !p.log.knows(provision.DeleterOf(v), provision.MadeOn(v))
		if err := p.log.forget(ctx, string(r.UID), others); err != nil {
			return fmt.Errorf("retain volume %s: %w", v.Name, err)
		}
	}
	return p.changeVolume(ctx, v, provision.Disowned(v))
}

// deleteVolume deletes the volume at the driver, then its object. After a crash between the two,
// DeleteVolume is repeated, without effect.
func (p *provisioner) deleteVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	live, err := p.free(ctx, v)
	if live == nil {
		return err
	}
	var secret *corev1.SecretReference
	if name := v.Annotations[volume.AnnDeletionSecretName]; name != "" {
		secret = &corev1.SecretReference{Name: name, Namespace: v.Annotations[volume.AnnDeletionSecretNamespace]}
	}
	about := csi.Subject{Volume: v.Name, Claim: cluster.ClaimOf(v)}
	call, err := p.remove(csi.About(ctx, about), v, v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle, secret)
	if err != nil {
		p.Events.WarnWith(v, provision.DeleteFailed(v, call),
			p.Try(volumeKey(v.Name)).Notes())
		return err
	}
	last, err := p.deleteObject(ctx, live)
	if last != nil && last.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		p.Events.Warn(v, provision.RetainedTooLate(last))
	}
	return err
}

// free returns a volume as the API server itself has it, if it is what was decided about, and nil if it is gone or an
// error says why it is not to be deleted.
func (p *provisioner) free(ctx context.Context, v *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	// The deletion cannot be undone, and a claim may have been bound to the volume since the
	// cache's version. So the API server is asked first. To delete the object first, on the condition
	// of its version, would save this request; but if the driver then refuses, the object could not be
	// kept any more by setting its policy to Retain.
	live, err := p.Client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get volume %s: %w", v.Name, err)
	case live.ResourceVersion != v.ResourceVersion:
		return nil, apierrors.NewConflict(corev1.Resource("persistentvolumes"), v.Name, nil)
	}
	if err := p.unclaimed(ctx, v); err != nil {
		return nil, err
	}
	return live, nil
}

// deleteObject deletes the object of a volume that its driver has deleted, or that was lost, and then removes, in one
// write, the finalizers that keep the object. It returns the object's last state, or nil.
func (p *provisioner) deleteObject(ctx context.Context, v *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if v.DeletionTimestamp == nil {
		if err := p.volumes.Delete(ctx, v, metav1.DeleteOptions{}); err != nil {
			return nil, err
		}
	}
	last, err := p.volumes.Patch(ctx, v, types.StrategicMergePatchType, provision.Forgotten(v, p.Protects))
	if err != nil {
		return nil, kube.IgnoreNotFound(err)
	}
	return last, nil
}

func (p *provisioner) changeVolume(ctx context.Context, before, after *corev1.PersistentVolume) error {
	_, err := p.volumes.Change(ctx, before, after)
	return kube.IgnoreNotFound(err)
}

// measuredDelete counts an attempt to delete a volume. After a conflict there was none: the volume is looked at again.
func (p *provisioner) measuredDelete(v *corev1.PersistentVolume, attempt func() error) error {
	begin := time.Now()
	err := attempt()
	if p.Meter != nil && !apierrors.IsConflict(err) {
		p.Meter.Deleted(v.Spec.StorageClassName, time.Since(begin), err)
	}
	return err
}

// remove calls DeleteVolume, which succeeds for a volume that does not exist.
func (p *provisioner) remove(
	ctx context.Context, about runtime.Object, driver, handle string, ref *corev1.SecretReference,
) (volume.Answer, error) {
	d, ok := p.Drivers.Get(driver)
	if !ok {
		err := fmt.Errorf("%s: %w", driver, errGone)
		return csi.AnswerOf(err), err
	}
	secret, missing, err := kube.SecretDataLeft(ctx, p.Client, ref)
	if err != nil {
		return csi.AnswerOf(err), err
	}
	if missing != nil {
		p.Events.Warn(about, provision.WithoutSecret(handle, missing.Error()))
	}
	_, err = d.ControllerClient().DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: handle, Secrets: secret})
	call := csi.AnswerOf(err)
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

// unclaimed returns an error if the API server has a claim that names the volume that names it. It is asked unless this
// process has seen the very claim of the volume's reference go: then that reference is as it was, and a claim
// that was made again since came too late to count on the volume.
func (p *provisioner) unclaimed(ctx context.Context, v *corev1.PersistentVolume) error {
	ref := v.Spec.ClaimRef
	if p.attempts.of(ref.UID).deleted {
		return nil
	}
	claim, err := p.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get claim of volume %s: %w", v.Name, err)
	case bind.Together(claim, v):
		return apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), claim.Name, nil)
	}
	return nil
}

// rememberDeleted remembers that a claim was seen to be deleted, as long as a volume refers to it.
func (p *provisioner) rememberDeleted(c *corev1.PersistentVolumeClaim) {
	refers := func(v *corev1.PersistentVolume) bool { return provision.Owns(c.UID, v) }
	if !slices.ContainsFunc(p.volumes.By(cluster.VolumesByClaim, cluster.Key(c)), refers) {
		return
	}
	p.attempts.learn(c.UID, func(a *attempt) { a.deleted = true })
	if !slices.ContainsFunc(p.volumes.By(cluster.VolumesByClaim, cluster.Key(c)), refers) {
		// The volume was deleted in between, so no other call forgets the claim.
		p.attempts.learn(c.UID, func(a *attempt) { a.deleted = false })
	}
}

// forgetDeleted forgets the claim to which a volume does not refer any more; after is nil if the volume has gone.
func (p *provisioner) forgetDeleted(before, after *corev1.PersistentVolume) {
	if before == nil || before.Spec.ClaimRef == nil {
		return
	}
	if claim := before.Spec.ClaimRef.UID; after == nil || !provision.Owns(claim, after) {
		p.attempts.learn(claim, func(a *attempt) { a.deleted = false })
	}
}

// enqueueUnclaimed queues the volumes that a claim does not name any more: while it named them, they were not deleted.
func (p *provisioner) enqueueUnclaimed(before, after *corev1.PersistentVolumeClaim) {
	if before == nil || after != nil && after.Spec.VolumeName == before.Spec.VolumeName {
		return
	}
	for _, v := range p.volumes.By(cluster.VolumesByClaim, cluster.Key(before)) {
		p.enqueueVolume(v.Name)
	}
}

// enqueueSharers queues the other volumes that have a volume's handle: they may wait for it.
func (p *provisioner) enqueueSharers(v *corev1.PersistentVolume) {
	if v.Spec.CSI == nil {
		return
	}
	for _, same := range p.volumes.By(cluster.VolumesByHandle, volume.Key(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)) {
		if same.Name != v.Name {
			p.enqueueVolume(same.Name)
		}
	}
}
