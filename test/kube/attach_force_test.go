package kube

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
)

const (
	// maxUnmount is how long a node that is not ready may take to unmount what no
	// Pod wants. Neither side can be told another time.
	maxUnmount = 6 * time.Minute
	// Times after the Pods went: when somebody says that a node is out of service,
	// when a Pod comes back and goes again, and when nodes die that have lived on,
	// one before its time is over, the other one after it.
	atTaint, atReturn, atLeave, atDeath, atLateDeath = 15 * time.Second, 2 * time.Minute, 2*time.Minute + 10*time.Second,
		4 * time.Minute, maxUnmount + 15*time.Second
	// spaceOfFates is where all Pods are.
	spaceOfFates = "default"
	// quietEnd is how long nothing else may happen at the end.
	quietEnd = 12 * time.Second
	// slack is how much later than that a volume may be detached: these minutes
	// pass while other tests need the processors.
	slack = time.Minute
)

// fate is what becomes of a volume that its node says it uses.
type fate struct {
	// node is the name of the node, of its Pod, its claim and its volume.
	node string
	// alive says that the node is ready when its Pod goes.
	alive bool
	// leave takes the Pod away; nil is at once and entirely.
	leave func(pod string) op
	// ours and theirs are how long after that the volume is detached; 0 is never.
	// patient is the same of both where nothing is detached by force for a
	// timeout.
	ours, theirs, patient time.Duration
}

func fates() []fate {
	asked := func(runs bool) func(string) op { return func(pod string) op { return terminatePod(pod, runs) } }
	return []fate{
		{node: "dead", ours: maxUnmount, theirs: maxUnmount},
		{node: "tainted", ours: atTaint, theirs: atTaint, patient: atTaint},
		{node: "dying", alive: true, ours: maxUnmount, theirs: maxUnmount},
		{node: "dying-late", alive: true, ours: atLateDeath, theirs: atLateDeath},
		{node: "alive", alive: true},
		// Its time begins anew.
		{node: "wanted-again"},
		// Nobody has taken the Pod away: its containers may still run.
		{node: "pod-runs", leave: asked(true)},
		// A Pod keeps its volumes until its node has taken it away; Kubernetes
		// believes the containers of a node that is dead.
		{node: "pod-ended", leave: asked(false), theirs: maxUnmount},
	}
}

// is returns after which time a side detaches the volume.
func (f fate) is(s side) time.Duration {
	switch {
	case s.patient:
		return f.patient
	case s.name == "volplane":
		return f.ours
	}
	return f.theirs
}

// happening is something that is done some time after the Pods went.
type happening struct {
	at time.Duration
	op
}

func happenings() []happening {
	return []happening{
		{atTaint, taint("tainted", true)},
		{atReturn, op{do: func(ctx context.Context, s side, _ string) error {
			return s.makePod(ctx, spaceOfFates, "wanted-again", nodeOfFate("wanted-again"), "wanted-again")
		}}},
		{atLeave, deletePod("wanted-again")},
		{atDeath, notReady("dying", corev1.ConditionUnknown)},
		{atLateDeath, notReady("dying-late", corev1.ConditionUnknown)},
	}
}

// TestForcedDetachIsKubernetes lets nodes die that say that they use volumes, and
// compares what becomes of them, and when: six minutes after the Pods went, or as
// soon as somebody says that a node is out of service, and then only where
// --disable-force-detach-on-timeout is given. It takes seven minutes, in which it
// does nearly nothing.
func TestForcedDetachIsKubernetes(t *testing.T) {
	t.Parallel()
	for _, patient := range []bool{false, true} {
		t.Run(fmt.Sprintf("disable=%t", patient), func(t *testing.T) {
			t.Parallel()
			compareFates(t, patient)
		})
	}
}

func compareFates(t *testing.T, patient bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*maxUnmount)
	defer cancel()
	ours, theirs := newSide(t, "volplane"), newSide(t, "kubernetes")
	ours.patient, theirs.patient = patient, patient
	drivers := ours.storage.start(t, nodesOfFates)
	theirs.storage.start(t, nodesOfFates)
	ours.ours(t, drivers, "attachdetach", "attacher")
	theirs.theirAttachDetach(t)
	theirs.theirAttacher(t, theirs.storage.driver)
	var both errgroup.Group
	var here, there map[string]time.Duration
	both.Go(func() (err error) { here, err = ours.suffer(ctx); return err })
	both.Go(func() (err error) { there, err = theirs.suffer(ctx); return err })
	if err := both.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("detached by volplane after %v, by Kubernetes after %v", here, there)
	for _, f := range fates() {
		for _, c := range []struct {
			s   side
			got time.Duration
		}{{ours, here[f.node]}, {theirs, there[f.node]}} {
			if want := f.is(c.s); c.got < want || c.got > want+slack || want == 0 && c.got > 0 {
				t.Errorf("%s: %s has detached its volume after %v, want %v (0 is never)", f.node, c.s.name, c.got, want)
			}
		}
	}
}

// nodesOfFates has a driver know all nodes.
func nodesOfFates(c *csitest.Config) {
	c.NodeID = "id-none"
	for _, f := range fates() {
		c.OtherNodes = append(c.OtherNodes, "id-"+f.node)
	}
}

// suffer has the nodes use their volumes, takes their Pods away, and returns after
// which time each volume was detached.
func (s side) suffer(ctx context.Context) (map[string]time.Duration, error) {
	for _, f := range fates() {
		if err := s.mounted(ctx, f.node); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", s.name, f.node, err)
		}
	}
	begin := time.Now()
	if err := s.die(ctx); err != nil {
		return nil, err
	}
	out, left := map[string]time.Duration{}, happenings()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for !s.suffered(time.Since(begin), out) {
		if len(left) > 0 && time.Since(begin) >= left[0].at {
			if err := left[0].do(ctx, s, spaceOfFates); err != nil {
				return nil, err
			}
			left = left[1:]
		}
		if err := s.noteDetached(ctx, begin, out); err != nil {
			return nil, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// At once: the other side may take longer, and here time goes on.
	return out, s.asDetached(out)
}

// suffered says whether all is over: what is late is waited for.
func (s side) suffered(since time.Duration, detached map[string]time.Duration) bool {
	late := slices.ContainsFunc(fates(), func(f fate) bool { return detached[f.node] == 0 && f.is(s) > 0 })
	return since >= atLateDeath+slack || since >= atLateDeath+quietEnd && !late
}

// asDetached says whether the driver has the volumes that were not detached.
func (s side) asDetached(detached map[string]time.Duration) error {
	for _, f := range fates() {
		at := s.publishedTo("id-" + f.node)
		if _, gone := detached[f.node]; gone != (len(at) == 0) {
			return fmt.Errorf("%s: %s: the driver has the volume at %v", s.name, f.node, at)
		}
	}
	return nil
}

// die has nodes not be ready any more, and takes the Pods of all away.
func (s side) die(ctx context.Context) error {
	for _, f := range fates() {
		if f.leave == nil {
			f.leave = deletePod
		}
		if !f.alive {
			if err := notReady(f.node, corev1.ConditionUnknown).do(ctx, s, spaceOfFates); err != nil {
				return err
			}
		}
		if err := f.leave(f.node).do(ctx, s, spaceOfFates); err != nil {
			return err
		}
	}
	return nil
}

func nodeOfFate(node string) string { return spaceOfFates + "-" + node }

// mounted makes a node, and has it use a volume for a Pod.
func (s side) mounted(ctx context.Context, node string) error {
	name := nodeOfFate(node)
	if err := s.makeNode(ctx, name, "id-"+node); err != nil {
		return err
	}
	if err := s.wire(ctx, spaceOfFates, node, csiVolume(node, driverName, corev1.ReadWriteOnce)); err != nil {
		return err
	}
	if err := s.makePod(ctx, spaceOfFates, node, name, node); err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) {
		all, err := s.mayMount(ctx, name)
		if err != nil || len(all) == 0 {
			return false, err
		}
		return true, s.uses(ctx, name, all...)
	})
}

// noteDetached notes when each attachment was first seen to be gone.
func (s side) noteDetached(ctx context.Context, begin time.Time, out map[string]time.Duration) error {
	all, err := s.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for i := range all.Items {
		there[all.Items[i].Spec.NodeName] = true
	}
	for _, f := range fates() {
		if _, known := out[f.node]; !there[nodeOfFate(f.node)] && !known {
			out[f.node] = time.Since(begin)
		}
	}
	return nil
}
