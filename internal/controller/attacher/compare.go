package attacher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// Limits of the calls of ListVolumes and of their answers.
const (
	pageSize  = 500
	maxPages  = 10_000
	maxPairs  = 1_000_000
	listLimit = 5 * time.Minute
)

var errEndless = errors.New("the list of volumes does not end")

// known holds the differences between the lists of drivers and the VolumeAttachments. It is lost at a restart, and the
// drivers are queried again.
type known struct {
	mu sync.Mutex
	// missing holds, for attachments that are marked as attached but not in their driver's list, what the list says about
	// them.
	missing map[types.UID]string
	// suspects holds, by driver, the pairs in its list that no attachment accounts for.
	suspects map[string]map[attach.Pair]bool
}

func newKnown() known {
	return known{missing: map[types.UID]string{}, suspects: map[string]map[attach.Pair]bool{}}
}

// whyMissing returns what the list says about an attachment that is missing in it, or "".
func (k *known) whyMissing(va types.UID) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.missing[va]
}

func (k *known) setMissing(va types.UID, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.missing[va] = why
}

// forget drops an attachment that was attached again or deleted.
func (k *known) forget(va types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.missing, va)
}

func (k *known) suspectsOf(driver string) map[attach.Pair]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.suspects[driver]
}

func (k *known) setSuspects(driver string, now map[attach.Pair]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.suspects[driver] = now
}

// compare lists the volumes that a driver has attached, corrects differences from the
// VolumeAttachments, and returns the pause until the next comparison; 0 means never. If the driver
// does not answer, the next comparison is early enough.
func (a *attacher) compare(ctx context.Context, driver string) time.Duration {
	d, ok := a.Drivers.Get(driver)
	if !ok || !d.Controller.PublishUnpublish || !d.Controller.ListVolumes || !d.Controller.ListVolumesPublishedNodes {
		return 0
	}
	if o, _ := a.csiDrivers.Get(driver); attach.SkipsAttach(o) {
		// The driver needs no attachments, so the nodes in its list do not come from any.
		return a.ReconcileSync
	}
	settled := map[types.UID]bool{}
	for _, va := range a.attachmentsOf(driver) {
		settled[va.UID] = va.Status.Attached
	}
	published, err := a.published(ctx, d)
	if err != nil {
		if ctx.Err() == nil && !csi.IsAnswer(err) {
			a.Env.Log.Warn("driver does not report what is attached", "driver", driver, "err", err)
		}
		return a.ReconcileSync
	}
	facts := a.publishedFacts(d, published, settled)
	plan := attach.Published(facts)
	if a.csiDrivers.Forgone() {
		// The driver may need no attachments, which is not known here, and only this controller detaches its volumes.
		plan.Undo = nil
	}
	a.correct(ctx, driver, plan)
	return a.ReconcileSync
}

// published returns the pairs of volumes and nodes that a driver has attached.
func (a *attacher) published(ctx context.Context, d *csi.Driver) (map[attach.Pair]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	out, token, size := map[attach.Pair]bool{}, "", ptr.Deref(a.MaxEntries, pageSize)
	for range maxPages {
		r, err := d.ControllerClient().ListVolumes(ctx, &csipb.ListVolumesRequest{MaxEntries: size, StartingToken: token})
		if err != nil {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		for _, e := range r.GetEntries() {
			for _, id := range e.GetStatus().GetPublishedNodeIds() {
				out[attach.Pair{Handle: e.GetVolume().GetVolumeId(), NodeID: id}] = true
			}
		}
		if len(out) > maxPairs || r.GetNextToken() == token && token != "" {
			return nil, errEndless
		}
		if token = r.GetNextToken(); token == "" {
			return out, nil
		}
	}
	return nil, errEndless
}

func (a *attacher) attachmentsOf(driver string) []*storagev1.VolumeAttachment {
	out := a.lost.list(driver)
	for _, va := range a.attachments.List() {
		if va.Spec.Attacher == driver {
			out = append(out, va)
		}
	}
	return out
}

func (a *attacher) publishedFacts(
	d *csi.Driver, published map[attach.Pair]bool, settled map[types.UID]bool,
) attach.PublishedFacts {
	driver := d.Name
	f := attach.PublishedFacts{
		Driver: driver, Published: published, Settled: settled, Attachments: a.attachmentsOf(driver),
		Nodes: map[string]*corev1.Node{}, Suspects: a.known.suspectsOf(driver),
	}
	for _, v := range a.volumes.List() {
		if v.Spec.CSI != nil && v.Spec.CSI.Driver == driver && d.Scope.Has(provision.MadeOn(v)) {
			f.Volumes = append(f.Volumes, v)
		}
	}
	for _, c := range a.csiNodes.List() {
		n, ok := a.nodes.Get(c.Name)
		if !ok {
			n = &corev1.Node{}
			n.Name = c.Name
		}
		for _, d := range c.Spec.Drivers {
			if d.Name == driver {
				f.Nodes[d.NodeID] = n
			}
		}
	}
	return f
}

// correct queues the attachments that differ. It does not call the driver itself, so that an attach
// and a detach of one attachment never overlap.
func (a *attacher) correct(ctx context.Context, driver string, p attach.PublishedPlan) {
	a.known.setSuspects(driver, p.Suspects)
	for _, c := range p.Undo {
		a.Events.Warn(c.Volume, c.Because)
		a.lost.put(c.Attachment)
		a.Add(controller.Key{Kind: kindAttachment, Name: c.Attachment.Name})
	}
	for _, c := range p.Again {
		a.correctStatus(ctx, c.Attachment, attach.Vanished(c, metav1.Now()))
		a.known.setMissing(c.Attachment.UID, c.Cause)
		a.Add(controller.Key{Kind: kindAttachment, Name: c.Attachment.Name})
	}
	for _, va := range p.Agreed {
		a.known.forget(va.UID)
		a.correctStatus(ctx, va, attach.Agreed(va))
	}
	if p.Because.Reason != volume.ReasonNothingToDo {
		a.Env.Log.Warn("driver and attachments differ", "driver", driver, "reason", p.Because.Reason, "again", len(p.Again),
			"undone", len(p.Undo))
	}
}

// correctStatus writes what a driver's list says about an attachment; after a failure, the next list does.
func (a *attacher) correctStatus(ctx context.Context, va *storagev1.VolumeAttachment, r attach.Result) {
	if err := a.write(ctx, va, r); err != nil && ctx.Err() == nil {
		a.Env.Log.Warn("status of an attachment is not written", "attachment", va.Name, "err", err)
	}
}
