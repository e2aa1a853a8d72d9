package resizer

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	// infeasiblePause is the pause after a driver has said that a size is infeasible, unless the
	// claim changes.
	infeasiblePause = 5 * time.Minute
	// status is the subresource of a claim that is written.
	status = "status"
)

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name:   "resizer",
		Inputs: kube.Read("", "persistentvolumeclaims", "persistentvolumes"),
		Outputs: []kube.Access{
			kube.Write("", "persistentvolumeclaims/status", "patch").Only("status.allocatedResources").
				Shared("until the node has its turn, over the version that it has read", sharedFields()...),
			kube.Write("", "persistentvolumes", "patch").
				Only("spec.capacity", kube.Annotation(volume.AnnPreResizeCapacity)),
			kube.Write("", "secrets", "get"),
		},
	}
}

// sharedFields are the fields of a claim that both the resizer and the node agent write.
func sharedFields() []string {
	return []string{
		"status.capacity", "status.allocatedResourceStatuses", kube.Condition(corev1.PersistentVolumeClaimResizing),
		kube.Condition(corev1.PersistentVolumeClaimFileSystemResizePending),
		kube.Condition(corev1.PersistentVolumeClaimControllerResizeError),
		kube.Condition(corev1.PersistentVolumeClaimNodeResizeError),
	}
}

type resizer struct{ controller.ClaimController }

// New returns the resizer for the drivers of a set. It must be made before the
// caches start.
func New(env controller.Env, drivers *csi.Set) *controller.Controller {
	r := &resizer{controller.NewClaimController(env, Declaration(), drivers)}
	r.Controller.Reconcile = r.reconcile
	r.Claims.Watch(r.claimChanged)
	drivers.Subscribe(func(string) {
		for _, c := range r.Claims.List() {
			r.Enqueue(c)
		}
	})
	return r.Controller
}

// claimChanged queues a claim, but not for changes that the resizer itself makes during a resize:
// that would defeat the back-off.
func (r *resizer) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	switch {
	case after == nil:
		r.Refusals.Forget(before.UID)
	case before == nil,
		before.Spec.VolumeName != after.Spec.VolumeName,
		before.Status.Phase != after.Status.Phase,
		before.Spec.Resources.Requests.Storage().Cmp(*after.Spec.Resources.Requests.Storage()) != 0,
		before.Status.Capacity.Storage().Cmp(*after.Status.Capacity.Storage()) != 0,
		resize.StateOf(before) != resize.StateOf(after) &&
			(resize.StateOf(after) == corev1.PersistentVolumeClaimNodeResizeInfeasible || resize.StateOf(after) == ""):
		r.Enqueue(after)
	}
}

func (r *resizer) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	claim, ok := r.Claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return controller.Result{}, nil
	}
	facts := r.gather(claim)
	plan := resize.Claim(facts)
	if pause := r.enterLane(key, facts, plan); pause > 0 {
		return controller.Result{After: pause}, nil
	}
	return r.apply(ctx, facts, plan)
}

// enterLane enters the lane of the plan's call, if it has one; see Controller.Enter.
func (r *resizer) enterLane(key controller.Key, f resize.Facts, p resize.Plan) time.Duration {
	if p.Step != resize.Begin && p.Step != resize.Expand || !f.Expands {
		return 0
	}
	lane := controller.Lane{Driver: f.Volume.Spec.CSI.Driver, Call: "expand", Namespace: key.Namespace}
	return r.Enter(key, lane, func(b volume.Because) { r.Events.Warn(f.Claim, b) })
}

func (r *resizer) gather(claim *corev1.PersistentVolumeClaim) resize.Facts {
	f := resize.Facts{Claim: claim, Refused: r.Refusals.Has(claim.UID, allocated(claim))}
	if resize.IsInfeasible(claim) {
		f.Due = r.pause(claim) == 0
	}
	f.Volume, _ = r.Volumes.Get(claim.Spec.VolumeName)
	if f.Volume == nil || f.Volume.Spec.CSI == nil {
		return f
	}
	if d, ok := r.Drivers.For(f.Volume.Spec.CSI.Driver, provision.MadeOn(f.Volume)); ok {
		f.Reachable, f.Expands, f.NodeExpands = true, d.Controller.Expand, d.Node.Expand
	}
	return f
}

func (r *resizer) apply(ctx context.Context, f resize.Facts, p resize.Plan) (controller.Result, error) {
	claim := f.Claim
	switch p.Step {
	case resize.Begin:
		got, err := r.Claims.Change(ctx, claim, resize.Started(claim, p.Size, metav1.Now()), status)
		if err != nil {
			return controller.Result{}, err
		}
		r.Refusals.Forget(claim.UID)
		r.Events.Note(claim, p.Because)
		f.Claim = got
		return r.expand(ctx, f, p)
	case resize.Settle:
		got, err := r.Volumes.Change(ctx, f.Volume, resize.Settled(f.Volume))
		if err != nil {
			return controller.Result{}, err
		}
		f.Volume = got
		return r.apply(ctx, f, resize.Claim(f))
	case resize.Expand, resize.Hand:
		return r.expand(ctx, f, p)
	case resize.Nothing:
		if p.Event {
			r.Events.Warn(claim, p.Because)
		}
	}
	return r.pauseInfeasible(claim), nil
}

// pause returns how long a claim is left alone; another size or another state begins another pause.
func (r *resizer) pause(c *corev1.PersistentVolumeClaim) time.Duration {
	return r.Refusals.Pause(c.UID, string(resize.StateOf(c))+" "+allocated(c), infeasiblePause)
}

func allocated(c *corev1.PersistentVolumeClaim) string {
	return c.Status.AllocatedResources.Storage().String()
}

// pauseInfeasible returns a result with a pause if the claim's size is infeasible.
func (r *resizer) pauseInfeasible(claim *corev1.PersistentVolumeClaim) controller.Result {
	if resize.IsInfeasible(claim) {
		return controller.Result{After: r.pause(claim)}
	}
	return controller.Result{}
}
