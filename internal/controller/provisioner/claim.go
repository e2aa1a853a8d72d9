package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

func (p *provisioner) reconcileClaim(ctx context.Context, uid string) (controller.Result, error) {
	claim, exists := p.claims.ByUID(uid)
	text, open := p.log.get(uid)
	if exists && !open && claim.DeletionTimestamp != nil {
		return controller.Result{}, p.releaseClaim(ctx, claim)
	}
	if in := p.log.uncalled(uid); in != nil && !open {
		return p.awaitCaller(ctx, claim, in)
	}
	if !exists && !open {
		return controller.Result{}, nil
	}
	known := provision.ClaimFacts{Claim: claim, Driver: p.Requests.Asked(types.UID(uid)), Options: p.Choices}
	if open {
		var err error
		if known, err = p.reopen(ctx, known, text); err != nil {
			return controller.Result{}, err
		}
	}
	f, err := p.gather(ctx, provision.ClaimFactsOf(p.view, known))
	if err != nil {
		return controller.Result{}, err
	}
	plan := provision.Claim(f)
	if result, waits := p.waits(claim, plan); waits {
		return result, nil
	}
	return controller.Result{}, p.apply(ctx, claim, plan)
}

// reopen adds the unresolved intent of a claim, and whether its source is still granted: its call is repeated as often
// as the driver needs, and each time its volume could become that of the claim.
func (p *provisioner) reopen(
	ctx context.Context, f provision.ClaimFacts, text string,
) (_ provision.ClaimFacts, err error) {
	if f.Intent, err = provision.ParseIntent(text); err != nil {
		return f, err
	}
	f.MayExist = p.attempts.of(f.Intent.Claim.UID).mayExist
	granted, err := p.granted(ctx, f.Intent.Claim.Namespace, f.Intent.From())
	f.Withdrawn = !granted
	return f, err
}

// gather adds the facts from the driver's capabilities and from the API server.
func (p *provisioner) gather(ctx context.Context, f provision.ClaimFacts) (provision.ClaimFacts, error) {
	d, ok := p.Drivers.Get(f.Driver)
	if !ok {
		return f, nil
	}
	f.Scope, f.Lacks = d.Scope, lacks(d)
	f.Reachable = f.Settles() || creates(d.Scope, f.Claim)
	contested := d.Place != nil && f.IsContested()
	if !f.Reachable && !contested || f.Lacks != "" || f.Settles() {
		return f, nil
	}
	f.BlockDriver = isBlockDriver(d)
	p.gatherPlaces(&f, d)
	p.gatherHere(&f, d, contested)
	if contested && !p.gatherContest(ctx, &f, d) {
		return f, nil
	}
	err := p.gatherSource(ctx, &f, d)
	if err != nil || contested {
		return f, err
	}
	f.Modifies = d.Controller.Modify
	f.Attributes, err = p.attributes(ctx, f.Claim)
	return f, err
}

// gatherSource adds what the driver can do with sources of data, and the snapshot to restore.
func (p *provisioner) gatherSource(ctx context.Context, f *provision.ClaimFacts, d *csi.Driver) (err error) {
	f.Source.Clones, f.Source.Restores = d.Controller.Clone, d.Controller.Snapshot
	from := cluster.SourceOf(f.Claim)
	if f.Source.Granted, err = p.granted(ctx, f.Claim.Namespace, from); err != nil || !f.Source.Granted {
		return err
	}
	f.Source.Look(p.view, from)
	if f.Source.Restores && from.IsSnapshot() {
		f.Source.Snapshot, err = p.snapshot(ctx, from.Namespace, from.Name)
	}
	return err
}

// gatherHere adds the node on which the volume of a claim is to be made.
func (p *provisioner) gatherHere(f *provision.ClaimFacts, d *csi.Driver, contested bool) {
	f.Local = d.Scope.Node != ""
	if f.Scheduled = d.Place != nil && !contested; d.Place != nil {
		f.Here = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: d.Scope.Node, Labels: d.Place}}
		return
	}
	f.Here = cluster.Find(p.view.Nodes, cmp.Or(d.Scope.Node, volume.SelectedNode(f.Claim.Annotations)))
}

// gatherPlaces adds where the volume of a claim can be.
func (p *provisioner) gatherPlaces(f *provision.ClaimFacts, d *csi.Driver) {
	f.Topology = d.Plugin.AccessibilityConstraints && !p.WithoutTopology
	switch {
	case !f.Topology:
	case d.Place == nil:
		f.Places = f.PlacesOf(p.view)
	case len(d.Place) == 0:
		f.Topology = false
	default:
		f.Places = f.PlaceOf(d.Place)
	}
}

// isBlockDriver says whether what the driver attaches to a node, stages there and expands there is certainly a block
// device. A process of the driver that serves no node does not say that.
func isBlockDriver(d *csi.Driver) bool {
	return d.Controller.PublishUnpublish && d.Node.StageUnstage && d.Node.Expand
}

// lacks returns the name of a capability that the driver lacks and that creating and deleting
// volumes requires; "" if it has all of them.
func lacks(d *csi.Driver) string {
	switch {
	case !d.Plugin.ControllerService:
		return "CONTROLLER_SERVICE"
	case !d.Controller.CreateDelete:
		return "CREATE_DELETE_VOLUME"
	}
	return ""
}

// gatherContest adds the facts of the contest for a claim, and says whether this node may take it now. The driver is
// asked for its room when the pause is over: by then most claims have been taken by others.
func (p *provisioner) gatherContest(ctx context.Context, f *provision.ClaimFacts, d *csi.Driver) bool {
	f.Contest = &provision.Contest{Off: p.Contest.Off}
	if p.Contest.Off {
		return false
	}
	f.Contest.Wait = p.attempts.untilTaken(f.Claim.UID, p.Contest)
	if f.Contest.Wait > 0 || !d.Controller.GetCapacity {
		return f.Contest.Wait <= 0
	}
	partly := *f
	partly.Partial = true
	if in := provision.Wanted(partly); in != nil {
		f.Contest.Room = p.room(ctx, in, d)
	}
	return true
}

// room returns how much room the driver has on this node for the volume of an intent; nil if it does not say.
func (p *provisioner) room(ctx context.Context, in *provision.Intent, d *csi.Driver) *int64 {
	r := &csipb.GetCapacityRequest{Parameters: in.Parameters}
	if len(d.Place) > 0 {
		r.AccessibleTopology = &csipb.Topology{Segments: d.Place}
	}
	var err error
	if r.VolumeCapabilities, err = capabilities(in, d); err != nil {
		return nil
	}
	got, err := d.ControllerClient().GetCapacity(ctx, r)
	if err != nil {
		p.Env.Log.Info("the driver does not report its free space on the node for a claim, which is provisioned here anyway",
			"claim", in.Claim.Namespace+"/"+in.Claim.Name, "err", err)
		return nil
	}
	return &got.AvailableCapacity
}

// take selects the node of this process for a claim, unless the claim has changed.
func (p *provisioner) take(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string) error {
	_, err := p.claims.Update(ctx, provision.Taken(claim, node))
	if apierrors.IsConflict(err) {
		// If another node has taken it, the cache will show it before the pause is over.
		p.AddAfter(claimKey(claim.UID), p.attempts.takeLater(claim.UID, p.Contest))
		return nil
	}
	return kube.IgnoreNotFound(err)
}

// waits says whether a plan must not be applied yet, and returns the result with the pause.
func (p *provisioner) waits(claim *corev1.PersistentVolumeClaim, plan provision.Plan) (controller.Result, bool) {
	if left := p.pause(claim, plan); left > 0 {
		return controller.Result{After: left}, true
	}
	if plan.Intent != nil && plan.Because.Reason == volume.ReasonDriverMissing {
		return p.awaitDriver(plan), true
	}
	if plan.Full {
		plan.Wait = p.attempts.takeLater(claim.UID, p.Contest)
	}
	if plan.Wait > 0 {
		return controller.Result{After: plan.Wait}, true
	}
	pause := p.enterCreateLane(plan)
	return controller.Result{After: pause}, pause > 0
}

// awaitDriver warns if the driver of an unresolved intent has been missing for long.
func (p *provisioner) awaitDriver(plan provision.Plan) controller.Result {
	if left := p.attempts.untilMissed(plan.Intent); left > 0 {
		return controller.Result{After: left}
	}
	p.Events.Warn(&plan.Intent.Claim, plan.Because)
	return controller.Result{}
}

// awaitCaller does what awaitDriver does, for an intent in the log of another process, which may have resolved it
// by then. Nothing else is done for the claim: a volume may have been made.
func (p *provisioner) awaitCaller(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, in *provision.Intent,
) (controller.Result, error) {
	plan := provision.Claim(provision.ClaimFactsOf(p.view, provision.ClaimFacts{Claim: claim, Intent: in}))
	if plan.Because.Reason != volume.ReasonDriverMissing {
		return controller.Result{}, nil
	}
	if p.attempts.untilMissed(in) <= 0 {
		if err := p.log.readOthers(ctx); err != nil {
			return controller.Result{}, err
		}
		if p.log.uncalled(string(in.Claim.UID)) == nil {
			p.attempts.learn(in.Claim.UID, func(a *attempt) { a.missing = time.Time{} })
			p.enqueueClaim(in.Claim.UID)
			return controller.Result{}, nil
		}
	}
	return p.awaitDriver(plan), nil
}

// pause returns for how long a plan must wait because its request has failed before.
func (p *provisioner) pause(claim *corev1.PersistentVolumeClaim, plan provision.Plan) time.Duration {
	now := time.Now()
	switch {
	case plan.Step == provision.Record, plan.Step == provision.Create:
		return p.attempts.left(plan.Intent.Claim.UID, plan.Intent.Request(), now)
	case plan.Reschedule:
		node := volume.SelectedNode(claim.Annotations)
		left := p.attempts.left(claim.UID, node, now)
		if left == 0 {
			p.attempts.refuse(claim.UID, node, now)
		}
		return left
	}
	return 0
}

func (p *provisioner) apply(ctx context.Context, claim *corev1.PersistentVolumeClaim, plan provision.Plan) error {
	switch plan.Step {
	case provision.Record, provision.Create:
		if err := p.holdName(plan.Intent); err != nil {
			return err
		}
		// The Secret is read first: without it, a volume could not be deleted again.
		secret, err := p.secret(ctx, plan.Intent)
		if err != nil {
			return err
		}
		if err := p.record(ctx, plan); err != nil {
			return err
		}
		return p.measured(claim, func() error { return p.create(ctx, claim, plan, secret) })
	case provision.Undo:
		if err := p.holdName(plan.Intent); err != nil {
			return err
		}
		return p.undo(ctx, plan.Intent)
	case provision.Finish:
		p.resolve(plan.Intent)
		return nil
	case provision.Take:
		return p.take(ctx, claim, plan.Node)
	case provision.Nothing:
		return p.wait(ctx, claim, plan)
	}
	return fmt.Errorf("%w %d", errStep, plan.Step)
}

// wait reports why nothing is done for a claim now, and requeues it if no event will end the wait.
func (p *provisioner) wait(ctx context.Context, claim *corev1.PersistentVolumeClaim, plan provision.Plan) error {
	if claim != nil {
		p.recordEvent(claim, plan)
	}
	if plan.Reschedule {
		return p.reschedule(ctx, claim)
	}
	if plan.Fault {
		// The error requeues the claim, because not everything that can resolve the problem is
		// watched, such as the source of a clone or the labels of a node (S4-032, S4-035).
		return fmt.Errorf("provision: %w: %s", errFault, plan.Because.Message)
	}
	return nil
}

// recordEvent records why nothing is done for a claim, if its owner has to know.
func (p *provisioner) recordEvent(claim *corev1.PersistentVolumeClaim, plan provision.Plan) {
	switch {
	case plan.Fault:
		p.Events.WarnWith(claim, plan.Because, p.Try(claimKey(claim.UID)).Notes())
	case plan.Event:
		p.Events.Note(claim, plan.Because)
	}
}

// record writes a new intent to the log, and protects the source of the volume's data.
func (p *provisioner) record(ctx context.Context, plan provision.Plan) error {
	in := plan.Intent
	if plan.Step == provision.Record {
		in.Begun = metav1.Now()
		if err := p.log.put(ctx, in); err != nil {
			return err
		}
	}
	err := p.protect(ctx, in)
	if !errors.Is(err, errSourceGone) {
		return err
	}
	return p.settle(ctx, in, provision.Creation{}, provision.AfterSourceGone(plan, err.Error()), err)
}

// resolve ends an intent whose volume has an object or does not exist.
func (p *provisioner) resolve(in *provision.Intent) {
	before := p.attempts.learn(in.Claim.UID, func(a *attempt) {
		a.inherited, a.mayExist, a.missing = false, false, time.Time{}
	})
	p.log.done(string(in.Claim.UID))
	p.attempts.release(nameOf(in), in)
	pause := sweepPause
	if before.inherited {
		pause = 0 // it has waited long enough
	}
	p.AddAfter(controller.Key{Kind: kindLog}, pause)
	p.releaseSource(in)
}

// enterCreateLane enters the lane of the plan's call, if it has one; see Controller.Enter. Undo is
// in the same lane, because it calls CreateVolume again, which may hang as the first call did; so
// it must not take places of deletions.
func (p *provisioner) enterCreateLane(plan provision.Plan) time.Duration {
	switch plan.Step {
	case provision.Record, provision.Create, provision.Undo:
	default:
		return 0 // a step without such a call, or one that is not known, which apply refuses
	}
	in := plan.Intent
	lane := controller.Lane{Driver: in.Driver, Call: "create", Namespace: in.Claim.Namespace}
	return p.Enter(claimKey(in.Claim.UID), lane,
		func(b volume.Because) { p.Events.Warn(&in.Claim, b) })
}
