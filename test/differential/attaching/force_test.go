package attaching

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
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

const (
	// maxUnmount is how long a node that is not ready may take to unmount volumes that no Pod needs. Users of
	// either side cannot configure the usual six minutes.
	maxUnmount = time.Minute
	// These are times after the deletion of the Pods: when a node is declared out of service, when a Pod is
	// created again and deleted again, and when nodes fail that were ready until then, one before that time
	// is over and one after it.
	atTaint, atReturn, atLeave, atDeath, atLateDeath = 5 * time.Second, 40 * time.Second, 50 * time.Second,
		55 * time.Second, maxUnmount + 5*time.Second
	// casesNamespace is the namespace of all Pods.
	casesNamespace = "default"
	// quietEnd is the time at the end in which no further detach may happen.
	quietEnd = 10 * time.Second
	// slack is how much later than expected a volume may be detached, since other tests run at the same time. It ends
	// before the one of the node whose volume is wanted again is due.
	slack = atLeave - (atLateDeath - maxUnmount) - 5*time.Second
)

// nodeCase is a node with one volume that it reports as in use, and the events of both.
type nodeCase struct {
	// node is the name of the node, of its Pod, its claim and its volume.
	node string
	// alive says that the node is ready when its Pod is deleted.
	alive bool
	// leave deletes the Pod; nil means a forced deletion.
	leave func(pod string) op
	// ours and theirs are the times after which the sides detach the volume; 0 means never. patient is the
	// time of both sides with --disable-force-detach-on-timeout.
	ours, theirs, patient time.Duration
}

func nodeCases() []nodeCase {
	asked := func(runs bool) func(string) op { return func(pod string) op { return terminatePod(pod, runs) } }
	return []nodeCase{
		{node: "dead", ours: maxUnmount, theirs: maxUnmount},
		{node: "tainted", ours: atTaint, theirs: atTaint, patient: atTaint},
		{node: "dying", alive: true, ours: maxUnmount, theirs: maxUnmount},
		{node: "dying-late", alive: true, ours: atLateDeath, theirs: atLateDeath},
		{node: "alive", alive: true},
		// The time begins again.
		{node: "wanted-again"},
		// The Pod is being deleted, but exists: its containers may still run.
		{node: "pod-runs", leave: asked(true)},
		// For volplane a Pod needs its volumes until it is deleted. Kubernetes trusts the status of
		// containers on a node that is dead.
		{node: "pod-ended", leave: asked(false), theirs: maxUnmount},
	}
}

// expected returns the time after which a side detaches the volume.
func (f nodeCase) expected(s side) time.Duration {
	switch {
	case s.Patient:
		return f.patient
	case s.Name == "volplane":
		return f.ours
	}
	return f.theirs
}

// timedStep is an operation at a time after the deletion of the Pods.
type timedStep struct {
	at time.Duration
	op
}

func timedSteps() []timedStep {
	return []timedStep{
		{atTaint, taint("tainted", true)},
		{atReturn, op{Do: func(ctx context.Context, s side, _ string) error {
			return makePod(ctx, s, casesNamespace, "wanted-again", nodeOfCase("wanted-again"), "wanted-again")
		}}},
		{atLeave, differential.DeletePod("wanted-again")},
		{atDeath, notReady("dying", corev1.ConditionUnknown)},
		{atLateDeath, notReady("dying-late", corev1.ConditionUnknown)},
	}
}

// TestForcedDetachIsKubernetes: nodes fail while they use volumes. Both sides detach the same volumes at
// the same time: maxUnmount after the Pods were deleted, or as soon as a node is declared out of service,
// and only then with --disable-force-detach-on-timeout.
func TestForcedDetachIsKubernetes(t *testing.T) {
	t.Parallel()
	for _, patient := range []bool{false, true} {
		t.Run(fmt.Sprintf("disable=%t", patient), func(t *testing.T) {
			t.Parallel()
			compareDetachTimes(t, patient)
		})
	}
}

func compareDetachTimes(t *testing.T, patient bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*maxUnmount)
	defer cancel()
	ours, theirs := differential.NewSide(t, "volplane", attaching()), differential.NewSide(t, "kubernetes", attaching())
	ours.Patient, theirs.Patient = patient, patient
	ours.MaxUnmount, theirs.MaxUnmount = maxUnmount, maxUnmount
	drivers := ours.Storage.Start(t, withNodesOfCases)
	theirs.Storage.Start(t, withNodesOfCases)
	ours.Ours(t, drivers, "attachdetach", "attacher")
	theirAttachDetach(t, theirs)
	theirAttacher(t, theirs, theirs.Storage.Driver)
	var both errgroup.Group
	var here, there map[string]time.Duration
	both.Go(func() (err error) { here, err = detachTimes(ctx, ours); return err })
	both.Go(func() (err error) { there, err = detachTimes(ctx, theirs); return err })
	if err := both.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("detached by volplane after %v, by Kubernetes after %v", here, there)
	for _, f := range nodeCases() {
		for _, c := range []struct {
			s   side
			got time.Duration
		}{{ours, here[f.node]}, {theirs, there[f.node]}} {
			if want := f.expected(c.s); c.got < want || c.got > want+slack || want == 0 && c.got > 0 {
				t.Errorf("%s: %s has detached its volume after %v, want %v (0 is never)", f.node, c.s.Name, c.got, want)
			}
		}
	}
}

// withNodesOfCases configures a driver that knows all nodes.
func withNodesOfCases(c *csitest.Config) {
	c.NodeID = "id-none"
	for _, f := range nodeCases() {
		c.OtherNodes = append(c.OtherNodes, "id-"+f.node)
	}
}

// detachTimes reports the volumes of the nodes as in use, deletes their Pods, and returns the time after which each
// volume was detached.
func detachTimes(ctx context.Context, s side) (map[string]time.Duration, error) {
	for _, f := range nodeCases() {
		if err := mounted(ctx, s, f.node); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", s.Name, f.node, err)
		}
	}
	begin := time.Now()
	if err := failNodes(ctx, s); err != nil {
		return nil, err
	}
	out, left := map[string]time.Duration{}, timedSteps()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for !finished(s, time.Since(begin), out) {
		if len(left) > 0 && time.Since(begin) >= left[0].at {
			if err := left[0].Do(ctx, s, casesNamespace); err != nil {
				return nil, err
			}
			left = left[1:]
		}
		if err := noteDetached(ctx, s, begin, out); err != nil {
			return nil, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// The driver is checked now, because the other side may take longer.
	return out, checkDriver(s, out)
}

// finished says whether the comparison is over. It waits for volumes that are detached too late.
func finished(s side, since time.Duration, detached map[string]time.Duration) bool {
	late := slices.ContainsFunc(nodeCases(), func(f nodeCase) bool { return detached[f.node] == 0 && f.expected(s) > 0 })
	return since >= atLateDeath+slack || since >= atLateDeath+quietEnd && !late
}

// checkDriver requires that the driver still has the volumes that were not detached.
func checkDriver(s side, detached map[string]time.Duration) error {
	for _, f := range nodeCases() {
		at := publishedTo(s, "id-"+f.node)
		if _, gone := detached[f.node]; gone != (len(at) == 0) {
			return fmt.Errorf("%s: %s: the driver has the volume at %v", s.Name, f.node, at)
		}
	}
	return nil
}

// failNodes marks nodes as not ready, and deletes the Pods of all nodes.
func failNodes(ctx context.Context, s side) error {
	for _, f := range nodeCases() {
		if f.leave == nil {
			f.leave = differential.DeletePod
		}
		if !f.alive {
			if err := notReady(f.node, corev1.ConditionUnknown).Do(ctx, s, casesNamespace); err != nil {
				return err
			}
		}
		if err := f.leave(f.node).Do(ctx, s, casesNamespace); err != nil {
			return err
		}
	}
	return nil
}

func nodeOfCase(node string) string { return casesNamespace + "-" + node }

// mounted creates a node that uses a volume for a Pod.
func mounted(ctx context.Context, s side, node string) error {
	name := nodeOfCase(node)
	if err := s.MakeNode(ctx, name, "id-"+node); err != nil {
		return err
	}
	if err := s.Wire(ctx, casesNamespace, node, differential.CSIVolume(node, differential.DriverName,
		corev1.ReadWriteOnce)); err != nil {
		return err
	}
	if err := makePod(ctx, s, casesNamespace, node, name, node); err != nil {
		return err
	}
	return upstream.Poll(ctx, func() (bool, error) {
		all, err := mayMount(ctx, s, name)
		if err != nil || len(all) == 0 {
			return false, err
		}
		return true, uses(ctx, s, name, all...)
	})
}

// noteDetached records the time at which each attachment was first missing.
func noteDetached(ctx context.Context, s side, begin time.Time, out map[string]time.Duration) error {
	all, err := s.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for i := range all.Items {
		there[all.Items[i].Spec.NodeName] = true
	}
	for _, f := range nodeCases() {
		if _, known := out[f.node]; !there[nodeOfCase(f.node)] && !known {
			out[f.node] = time.Since(begin)
		}
	}
	return nil
}
