package capacity

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

var errLost = errors.New("the answer is lost")

func (b *bench) fails(verb string, err error) {
	b.client.PrependReactor(verb, "csistoragecapacities",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// TestWhatADriverSays: the driver is asked for each class and segment; each answer becomes one object, which is written
// again only when the answer differs.
func TestWhatADriverSays(t *testing.T) {
	early := late("early")
	early.VolumeBindingMode = nil
	b := newBench(t, nil)
	b.begins(early, late("fast"))
	if after := b.works(theDriver()); after != 0 {
		t.Errorf("comes back after %v", after)
	}
	b.wakes(item("fast", "a").String(), item("fast", "b").String())
	b.answers(5*gib, 2*gib)
	if after := b.works(item("fast", "a")); after != time.Minute {
		t.Errorf("asks again after %v", after)
	}
	b.objectsAre(object("fast", "a", "5Gi", "2Gi"))
	b.answers(7*gib, 0)
	b.works(item("fast", "b"))
	b.objectsAre(object("fast", "a", "5Gi", "2Gi"), object("fast", "b", "7Gi", ""))
	b.called(asks("fast", "a"), asks("fast", "b"))
	// No other key is queued in between.
	b.works(theDriver())
	b.works(item("early", "a"))
	b.called(asks("fast", "a"), asks("fast", "b"))
}

// TestNews: only changes are written, to the existing object, which may have the name that a sidecar gave it.
func TestNews(t *testing.T) {
	was := object("fast", "a", "5Gi", "2Gi")
	was.Name, was.Namespace, was.Labels["theirs"] = "csisc-random", "theirs", "x"
	b := newBench(t, func(s *setup) { s.deaf, s.Poll = true, time.Hour }, places(late("fast"), was)...)
	b.works(theDriver())
	b.answers(5*gib, 2*gib)
	if after := b.works(item("fast", "a")); after != time.Hour {
		t.Errorf("asks again after %v", after)
	}
	b.answers(6*gib, 0)
	b.works(item("fast", "a"))
	b.works(item("fast", "a"))
	want := was.DeepCopy()
	want.Capacity, want.MaximumVolumeSize = object("fast", "a", "6Gi", "").Capacity, nil
	b.objectsAre(want)
	var updates int
	for _, a := range b.client.Actions() {
		if a.Matches("update", "csistoragecapacities") {
			updates++
		}
	}
	if updates != 1 {
		t.Errorf("%d updates", updates)
	}
	b.answers(1, 0)
	b.fails("update", errLost)
	b.errs(item("fast", "a"), "update capacity object theirs/csisc-random: the answer is lost")
}

// TestImmediate: classes with immediate binding have objects, too, if the option is set.
func TestImmediate(t *testing.T) {
	early := late("early")
	early.VolumeBindingMode = nil
	b := newBench(t, func(s *setup) { s.Immediate = true })
	b.begins(early)
	b.works(theDriver())
	b.wakes(item("early", "a").String(), item("early", "b").String())
}

// TestWhatCannotBeTold: after an unusable answer the object stays as it is, and an event of the class says why.
func TestWhatCannotBeTold(t *testing.T) {
	was := object("fast", "a", "5Gi", "")
	for name, one := range map[string]struct {
		does  func(*bench)
		next  string
		words string
	}{
		"no answer": {func(b *bench) {
			b.driver.OnCall("GetCapacity", func(int, any) csitest.Action {
				return csitest.Action{Err: status.Error(codes.Internal, "no")}
			})
		}, driverName, "Internal"},
		"nonsense": {func(b *bench) { b.answers(-1, 0) }, driverName, "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, places(late("fast"), was)...)
			b.works(theDriver())
			one.does(b)
			b.errs(item("fast", "a"), one.words)
			b.objectsAre(was)
			b.told("fast", one.next, one.words)
		})
	}
	foreign := was.DeepCopy()
	foreign.Labels[volume.LabelManagedBy] = "somebody"
	b := newBench(t, nil, places(late("fast"), foreign)...)
	b.works(theDriver())
	b.answers(6*gib, 0)
	b.errs(item("fast", "a"), "belongs to another program")
	b.objectsAre(foreign)
	b.told("fast", "user", "belongs to another program")
}

// TestAnObjectThatIsNotSeenYet: an object that the caches do not show yet is found by its name and written again. After
// that the caches show it.
func TestAnObjectThatIsNotSeenYet(t *testing.T) {
	unseen := func() *bench {
		b := newBench(t, func(s *setup) { s.deaf = true }, places(late("fast"))...)
		made := object("fast", "a", "1Gi", "")
		if _, err := b.client.StorageV1().CSIStorageCapacities(made.Namespace).Create(t.Context(), made,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		b.works(theDriver())
		b.answers(5*gib, 0)
		return b
	}
	b := unseen()
	b.works(item("fast", "a"))
	b.works(item("fast", "a"))
	b.fails("get", errLost)
	b.answers(6*gib, 0)
	b.works(item("fast", "a"))
	b.objectsAre(object("fast", "a", "6Gi", ""))
	b = unseen()
	b.fails("get", errLost)
	b.errs(item("fast", "a"), "look at capacity object "+volume.NamespaceSystem+"/"+nameIn("fast", "a")+
		": the answer is lost")
	b.fails("create", errLost)
	b.errs(item("fast", "a"), "create capacity object "+volume.NamespaceSystem+"/"+nameIn("fast", "a")+
		": the answer is lost")
}

// TestWhatIsObsolete: obsolete objects are deleted if they belong to the driver, and only in the version that was read.
func TestWhatIsObsolete(t *testing.T) {
	gone, kept, others := object("gone", "a", "1Gi", ""), object("fast", "a", "1Gi", ""), object("gone", "b", "1Gi", "")
	gone.UID, others.Labels[volume.LabelManagedBy] = "u-gone", "somebody"
	b := newBench(t, func(s *setup) { s.deaf = true }, places(late("fast"), gone, kept, others)...)
	b.fails("delete", errLost)
	b.errs(theDriver(), "delete capacity object "+volume.NamespaceSystem+"/"+gone.Name+": the answer is lost")
	b.fails("delete", apierrors.NewNotFound(storagev1.Resource("csistoragecapacities"), gone.Name))
	b.works(theDriver())
	b = newBench(t, func(s *setup) { s.deaf = true }, places(late("fast"), gone, kept, others)...)
	b.works(theDriver())
	b.objectsAre(kept, others)
	for _, a := range b.client.Actions() {
		if d, ok := a.(clienttesting.DeleteActionImpl); ok &&
			(d.DeleteOptions.Preconditions == nil || *d.DeleteOptions.Preconditions.UID != "u-gone") {
			t.Errorf("deleted whatever has the name: %+v", d.DeleteOptions)
		}
	}
	// A driver without GET_CAPACITY has no objects.
	b = newBench(t, func(s *setup) { s.config.Controller.GetCapacity = false }, places(late("fast"), kept)...)
	b.works(theDriver())
	b.objectsAre()
	b.works(item("fast", "a"))
	b.called()
}

// TestADriverIsAskedOnceAtATime: keys that are queued during a call wait for its end.
func TestADriverIsAskedOnceAtATime(t *testing.T) {
	b := newBench(t, nil)
	b.begins(late("fast"))
	b.works(theDriver())
	b.wakes(item("fast", "a").String(), item("fast", "b").String())
	b.driver.OnCall("GetCapacity", func(int, any) csitest.Action {
		if after := b.works(item("fast", "b")); after != 0 {
			t.Errorf("comes back after %v", after)
		}
		return csitest.Action{}
	})
	b.works(item("fast", "a"))
	b.called(asks("fast", "a"))
	b.wakes(item("fast", "b").String(), "driver/"+driverName)
	b.driver.OnCall("GetCapacity", nil)
	b.works(item("fast", "b"))
	b.called(asks("fast", "a"), asks("fast", "b"))
}

// TestADriverThatIsAway: no calls are made, and objects that a sidecar may maintain stay.
func TestADriverThatIsAway(t *testing.T) {
	sidecars := object("gone", "a", "1Gi", "")
	sidecars.Name = "csisc-random"
	b := newBench(t, func(s *setup) { s.late = true })
	b.begins(late("fast"))
	b.play(event{
		storagev1.SchemeGroupVersion.WithResource("csistoragecapacities"), "", sidecars, []string{"driver/" + driverName},
	})
	b.works(theDriver())
	b.works(item("fast", "a"))
	b.objectsAre(sidecars)
	b.drivers.Put(b.dialed)
	b.wakes("driver/" + driverName)
	b.works(theDriver())
	b.objectsAre()
	// The item of the deleted object is reconciled, too, although it no longer exists.
	b.wakes(item("fast", "a").String(), item("fast", "b").String(), item("gone", "a").String(), "driver/"+driverName)
	// It is reconciled when it unregisters, without a call.
	b.drivers.Remove(b.dialed)
	b.wakes("driver/" + driverName)
	b.works(theDriver())
	b.works(item("fast", "a"))
	b.called()
	// It is asked about everything again when it is back.
	b.drivers.Put(b.dialed)
	b.wakes("driver/" + driverName)
	b.works(theDriver())
	b.wakes(item("fast", "a").String(), item("fast", "b").String())
}

// TestPauses: a failing driver is not called more often.
func TestPauses(t *testing.T) {
	for _, one := range []struct{ poll, first, last time.Duration }{
		{0, firstPause, time.Minute}, {time.Millisecond, time.Millisecond, time.Millisecond},
	} {
		c := newBench(t, func(s *setup) { s.Poll = one.poll }).c
		if c.RetryMin != one.first || c.RetryMax != one.last || c.Name != "capacity" {
			t.Errorf("%s: pauses from %v to %v", c.Name, c.RetryMin, c.RetryMax)
		}
	}
}
