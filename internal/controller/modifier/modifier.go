package modifier

import (
	"context"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/modify"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	// status is the subresource of a claim that is written.
	status = "status"
	// refusedPause is the pause after a driver has permanently refused a class.
	refusedPause = 5 * time.Minute
)

// errGone says that a driver is not registered any more.
var errGone = errors.New("the driver has gone")

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "modifier",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes"),
			kube.Read("storage.k8s.io", "volumeattributesclasses")...),
		Outputs: []kube.Access{
			kube.Write("", "persistentvolumeclaims/status", "patch").Only("status.modifyVolumeStatus",
				kube.Condition(corev1.PersistentVolumeClaimVolumeModifyingVolume),
				kube.Condition(corev1.PersistentVolumeClaimVolumeModifyVolumeError)).
				Shared("of a volume whose attributes were changed; the binder writes it when it binds",
					"status.currentVolumeAttributesClassName"),
			kube.Write("", "persistentvolumes", "patch").Only("spec.volumeAttributesClassName"),
			kube.Write("", "secrets", "get"),
		},
	}
}

type modifier struct {
	controller.ClaimController
	// metadata means that drivers receive the names of the claim and of the volume.
	metadata bool
	classes  *kube.Cache[*storagev1.VolumeAttributesClass]
}

// New returns the modifier for the drivers of a set. It must be made before the caches start.
func New(env controller.Env, drivers *csi.Set, metadata bool) *controller.Controller {
	m := &modifier{
		ClaimController: controller.NewClaimController(env, Declaration(), drivers), metadata: metadata,
		classes: env.Caches.VolumeAttributesClasses(),
	}
	m.Controller.Reconcile = m.reconcile
	m.Claims.Watch(m.claimChanged)
	m.classes.Watch(func(before, after *storagev1.VolumeAttributesClass) {
		if before == nil {
			m.enqueueAll(func(c *corev1.PersistentVolumeClaim) bool { return m.target(c) == after.Name })
		}
	})
	drivers.Subscribe(func(string) { m.enqueueAll(func(*corev1.PersistentVolumeClaim) bool { return true }) })
	return m.Controller
}

// enqueueAll queues the claims that match, of those that have anything to do with a class.
func (m *modifier) enqueueAll(match func(*corev1.PersistentVolumeClaim) bool) {
	for _, c := range m.Claims.List() {
		if (c.Spec.VolumeAttributesClassName != nil || c.Status.ModifyVolumeStatus != nil) && match(c) {
			m.Enqueue(c)
		}
	}
}

// claimChanged queues a claim, but not for the modifier's own writes while a call fails: that would defeat the
// back-off.
func (m *modifier) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	switch {
	case after == nil:
		m.Refusals.Forget(before.UID)
	case before == nil,
		before.Spec.VolumeName != after.Spec.VolumeName,
		before.Status.Phase != after.Status.Phase,
		!apiequality.Semantic.DeepEqual(before.Spec.VolumeAttributesClassName, after.Spec.VolumeAttributesClassName),
		before.Status.ModifyVolumeStatus != nil && after.Status.ModifyVolumeStatus == nil:
		m.Enqueue(after)
	}
}

func (m *modifier) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	claim, ok := m.Claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return controller.Result{}, nil
	}
	f := m.gather(claim)
	plan := modify.Claim(f)
	if plan.Step == modify.Begin || plan.Step == modify.Modify {
		lane := controller.Lane{Driver: f.Volume.Spec.CSI.Driver, Call: "modify", Namespace: key.Namespace}
		if pause := m.Enter(key, lane, func(b volume.Because) { m.Events.Warn(claim, b) }); pause > 0 {
			return controller.Result{After: pause}, nil
		}
	}
	return m.apply(ctx, f, plan)
}

func (m *modifier) gather(claim *corev1.PersistentVolumeClaim) modify.Facts {
	f := modify.Facts{Claim: claim, Refused: m.Refusals.Has(claim.UID, ""), Due: m.pause(claim) == 0}
	f.Volume, _ = m.Volumes.Get(claim.Spec.VolumeName)
	f.Class, _ = m.classes.Get(f.Target())
	if f.Volume == nil || f.Volume.Spec.CSI == nil {
		return f
	}
	if d, ok := m.Drivers.For(f.Volume.Spec.CSI.Driver, provision.MadeOn(f.Volume)); ok {
		f.Reachable, f.Modifies = true, d.Controller.Modify
	}
	return f
}

// target returns the name of the class that a claim's volume gets next.
func (m *modifier) target(claim *corev1.PersistentVolumeClaim) string {
	return modify.Facts{Claim: claim, Refused: m.Refusals.Has(claim.UID, "")}.Target()
}

func (m *modifier) apply(ctx context.Context, f modify.Facts, p modify.Plan) (controller.Result, error) {
	var err error
	switch p.Step {
	case modify.Begin:
		begun := modify.Begun(f.Claim, f.Class.Name, metav1.Now())
		if f.Claim, err = m.Claims.Change(ctx, f.Claim, begun, status); err != nil {
			return controller.Result{}, err
		}
		m.Refusals.Forget(f.Claim.UID)
		m.Events.Note(f.Claim, p.Because)
		return m.modify(ctx, f)
	case modify.Modify:
		return m.modify(ctx, f)
	case modify.Wait:
		_, err = m.Claims.Change(ctx, f.Claim, modify.Waiting(f.Claim), status)
	case modify.Cancel:
		if _, err = m.Claims.Change(ctx, f.Claim, modify.Cancelled(f.Claim), status); err == nil {
			m.Events.Note(f.Claim, p.Because)
		}
	case modify.Refuse:
		refused := modify.Refused(f, p.Because.Message, metav1.Now())
		if f.Claim, err = m.Claims.Change(ctx, f.Claim, refused, status); err != nil {
			return controller.Result{}, err
		}
	case modify.Nothing:
	}
	if p.Event {
		m.Events.Warn(f.Claim, p.Because)
	}
	return controller.Result{After: m.pause(f.Claim)}, err
}

// pause returns how long a claim is left alone because its class was permanently refused.
func (m *modifier) pause(c *corev1.PersistentVolumeClaim) time.Duration {
	if !modify.IsRefusedForGood(c) {
		return 0
	}
	return m.Refusals.Pause(c.UID, c.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName, refusedPause)
}

// modify calls the driver, and applies the decision about the answer.
func (m *modifier) modify(ctx context.Context, f modify.Facts) (controller.Result, error) {
	cause := m.call(ctx, f)
	v := modify.After(f, csi.AnswerOf(cause), metav1.Now())
	m.Refusals.Forget(f.Claim.UID)
	m.Refusals.Record(f.Claim.UID, "", v.Refused)
	if v.Warn {
		m.Events.WarnWith(f.Claim, v.Because, m.Tried(f.Claim, v.Repeat).Notes())
	}
	claim, err := m.Write(ctx, f.Claim, v.Claim, f.Volume, v.Volume)
	switch {
	case err != nil:
		return controller.Result{}, err
	case v.Repeat:
		return controller.Result{}, fmt.Errorf("change the attributes of the volume of claim %s/%s: %w",
			claim.Namespace, claim.Name, cause)
	case !v.Warn:
		m.Events.Note(claim, v.Because)
	}
	return controller.Result{After: m.pause(claim)}, nil
}

func (m *modifier) call(ctx context.Context, f modify.Facts) error {
	source := f.Volume.Spec.CSI
	d, ok := m.Drivers.Get(source.Driver)
	if !ok {
		return fmt.Errorf("%s: %w", source.Driver, errGone)
	}
	secret, err := kube.SecretData(ctx, m.Client, modify.SecretOf(f.Volume))
	if err != nil {
		return err
	}
	ctx = csi.About(ctx, csi.Subject{Volume: f.Volume.Name, Claim: cluster.ClaimOf(f.Volume)})
	_, err = d.ControllerClient().ControllerModifyVolume(ctx, &csipb.ControllerModifyVolumeRequest{
		VolumeId: source.VolumeHandle, Secrets: secret, MutableParameters: modify.Parameters(f, m.metadata),
	})
	return err
}
