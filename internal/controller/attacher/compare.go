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
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

// Bounds of what a driver may answer when it is asked for its volumes.
const (
	pageSize  = 500
	maxPages  = 10_000
	maxPairs  = 1_000_000
	listLimit = 5 * time.Minute
)

// errEndless is a driver that lists and lists.
var errEndless = errors.New("the list of volumes has no end")

// known is what drivers have said of their volumes. A restart forgets it, and
// they are asked again.
type known struct {
	mu sync.Mutex
	// again are attachments that their drivers do not know.
	again map[types.UID]bool
	// suspects are, by driver, what it has attached for no attachment.
	suspects map[string]map[attach.Pair]bool
}

func newKnown() known {
	return known{again: map[types.UID]bool{}, suspects: map[string]map[attach.Pair]bool{}}
}

func (k *known) isAgain(va types.UID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.again[va]
}

func (k *known) setAgain(va types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.again[va] = true
}

// forget ends the doubt about an attachment.
func (k *known) forget(va types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.again, va)
}

// suspected returns what is suspected of a driver.
func (k *known) suspected(driver string) map[attach.Pair]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.suspects[driver]
}

func (k *known) suspect(driver string, now map[attach.Pair]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.suspects[driver] = now
}

// compare asks a driver what it has attached, corrects what differs from the
// attachments, and returns when to ask again; 0 is never. A driver that does
// not answer is asked again as if it had: nothing depends on one round.
func (a *attacher) compare(ctx context.Context, driver string) time.Duration {
	d, ok := a.Drivers.Get(driver)
	if !ok || !d.Controller.PublishUnpublish || !d.Controller.ListVolumes || !d.Controller.ListVolumesPublishedNodes {
		return 0
	}
	if o, _ := a.csiDrivers.Get(driver); attach.Needless(o) {
		// What it says of nodes has nothing to do with attachments.
		return a.ReconcileSync
	}
	settled := map[types.UID]bool{}
	for _, va := range a.attachmentsOf(driver) {
		settled[va.UID] = va.Status.Attached
	}
	published, err := a.published(ctx, d)
	if err != nil {
		if ctx.Err() == nil {
			a.Env.Log.Warn("driver does not say what is attached", "driver", driver, "err", err)
		}
		return a.ReconcileSync
	}
	facts := a.publishedFacts(driver, published, settled)
	a.correct(driver, attach.Published(facts))
	return a.ReconcileSync
}

// published asks a driver, page by page, for what it has attached.
func (a *attacher) published(ctx context.Context, d *csi.Driver) (map[attach.Pair]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	out, token := map[attach.Pair]bool{}, ""
	for range maxPages {
		r, err := d.ControllerClient().ListVolumes(ctx, &csipb.ListVolumesRequest{MaxEntries: pageSize, StartingToken: token})
		if err != nil {
			return nil, fmt.Errorf("list volumes: %s", csi.Describe(err))
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
	driver string, published map[attach.Pair]bool, settled map[types.UID]bool,
) attach.PublishedFacts {
	f := attach.PublishedFacts{
		Driver: driver, Published: published, Settled: settled, Attachments: a.attachmentsOf(driver),
		Nodes: map[string]*corev1.Node{}, Suspects: a.known.suspected(driver),
	}
	for _, v := range a.volumes.List() {
		if v.Spec.CSI != nil && v.Spec.CSI.Driver == driver {
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

// correct leaves the calls to the attachments' own keys, so that an attach and
// a detach of one never overlap.
func (a *attacher) correct(driver string, p attach.PublishedPlan) {
	a.known.suspect(driver, p.Suspects)
	for _, c := range p.Undo {
		a.Events.Warn(c.Volume, c.Because)
		a.lost.put(c.Attachment)
		a.Add(controller.Key{Kind: kindAttachment, Name: c.Attachment.Name})
	}
	for _, c := range p.Again {
		a.Events.Warn(c.Attachment, c.Because)
		a.known.setAgain(c.Attachment.UID)
		a.Add(controller.Key{Kind: kindAttachment, Name: c.Attachment.Name})
	}
	if p.Because.Reason != volume.ReasonNothingToDo {
		a.Env.Log.Warn("driver and attachments differ", "driver", driver, "reason", p.Because.Reason, "again", len(p.Again),
			"undone", len(p.Undo))
	}
}
