package provisioner

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// logsOf has the process keep the intents about drivers in logs of these drivers.
func logsOf(l Logs) func(*setup) { return func(s *setup) { s.Intents = l } }

// logs returns the names of the logs that have objects.
func (b *bench) logs() map[string]bool {
	b.t.Helper()
	all, err := b.api.CoreV1().ConfigMaps(volume.NamespaceSystem).List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	out := map[string]bool{}
	for i := range all.Items {
		out[all.Items[i].Labels[volume.LabelIntents]] = true
	}
	return out
}

// TestIntentsGoWithTheDriver: a process has called a driver whose answer was lost, and its leases with it. Whoever
// calls the driver next finds the intent, also when nobody wants the volume any more. The first one acts on nothing
// that it remembers, and reads the log anew when the driver is its own again.
func TestIntentsGoWithTheDriver(t *testing.T) {
	b := newBench(t, func(s *setup) { s.Intents, s.hears = Standalone(), true }, claim("c"), class())
	b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
		return csitest.Action{After: true, Err: no(codes.Unavailable)}
	})
	b.errs(kindClaim, "u-c", "Unavailable")
	if got := b.logs(); len(got) != 1 || !got[identity.DriverIntents(driverName)] {
		t.Errorf("logs %v", got)
	}
	first := &bench{
		t: t, api: b.api, driver: b.driver, dialed: b.dialed, drivers: b.drivers, setup: b.setup, claims: b.claims,
		volumes: b.volumes, step: b.step, closing: b.closing, stop: b.stop,
	}
	first.drivers.Remove(first.dialed)
	b.deleteClaim("c")
	b.driver.OnCall("CreateVolume", nil)
	first.paused(kindClaim, "u-c", defaultLateness) // it tells later that it knows of an intent
	first.called(asksFor("c"))

	b.setup.Intents = OnHost("two")
	b.start()
	b.works(kindClaim, "u-c")
	b.called(asksFor("c"), asksFor("c"), deletes("c", nil))
	b.sweeps()
	b.open()

	b.drivers.Remove(b.dialed)
	first.drivers.Put(first.dialed)
	first.until("it hears of the claim", func() bool { _, there := first.claims.Get("ns/c"); return !there })
	first.works(kindClaim, "u-c")
	first.called(asksFor("c"), asksFor("c"), deletes("c", nil))
	first.stop()
}

// TestWhoseLogItIs: the volumes of one node are in the log of its host, all others in that of their driver.
func TestWhoseLogItIs(t *testing.T) {
	for name, one := range map[string]struct {
		logs  Logs
		scope volume.Scope
		want  string
	}{
		"beside one driver": {oneLog(), volume.Scope{}, "volplane-intents"},
		"a control plane":   {Standalone(), volume.Scope{}, identity.DriverIntents(driverName)},
		"its node, and volumes of no node": {
			Standalone(), volume.Scope{Node: "n", Rest: true}, "volplane-intents",
		},
		"a host with a driver of its own": {OnHost("n"), volume.Scope{Node: "n"}, identity.HostIntents("n")},
		"a host to which it is delegated": {OnHost("n"), volume.Scope{}, identity.DriverIntents(driverName)},
	} {
		t.Run(name, func(t *testing.T) {
			c := claim("c")
			c.Annotations[volume.AnnSelectedNode] = "n"
			b := newBench(t, func(s *setup) { s.Intents, s.late = one.logs, true }, c, class())
			b.drivers.Put(b.dialed.In(one.scope))
			b.fails("CreateVolume", no(codes.Unavailable), false)
			b.errs(kindClaim, "u-c", "Unavailable")
			if got := b.logs(); len(got) != 1 || !got[one.want] {
				t.Errorf("logs %v, want %s", got, one.want)
			}
			b.open("u-c")
		})
	}
}

// TestIntentsOfAnEarlierVersion: they are in the process's own log, or in one that it has inherited, and are resolved
// from there. An intent of the same claim that follows is never beside an old one.
func TestIntentsOfAnEarlierVersion(t *testing.T) {
	inherits := OnHost("n")
	inherits.Inherited = []kube.LogPlace{Standalone().Own}
	for _, logs := range []Logs{Standalone(), inherits} {
		b := newBench(t, logsOf(logs), begun("u-c", "pvc-u-c"))
		b.works(kindClaim, "u-c")
		b.called(asksFor("c"), deletes("c", nil))
		b.sweeps()
		b.open()
	}

	b := newBench(t, logsOf(Standalone()), begun("u-c", "pvc-u-c"), claim("c"), class())
	b.fails("CreateVolume", no(codes.InvalidArgument), false)
	b.errs(kindClaim, "u-c", "InvalidArgument")
	b.fails("CreateVolume", nil, false)
	b.drivers.Remove(b.dialed)
	b.drivers.Put(b.dialed) // it forgets what was refused
	b.works(kindClaim, "u-c")
	b.open("u-c")
	if got := b.logs(); len(got) != 1 || !got[identity.DriverIntents(driverName)] {
		t.Errorf("logs %v", got)
	}
}

// TestRetainedWhileOthersMayKnow: a volume to retain, of a driver that the process does not call, keeps its finalizer
// as long as some other log has an intent of its claim, resolved or not; a process that may not read all logs leaves it
// to the driver's caller.
func TestRetainedWhileOthersMayKnow(t *testing.T) {
	retained := unwanted(func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	})
	lets := "patch persistentvolumes pvc-u-c"
	for name, one := range map[string]struct {
		logs  Logs
		known string
		want  []string
	}{
		"nobody knows":            {logs: Standalone(), want: []string{lets}},
		"the driver's log has it": {logs: Standalone(), known: identity.DriverIntents(driverName)},
		"a host's log has it":     {logs: Standalone(), known: identity.HostIntents("two")},
		"a host does not look":    {logs: OnHost("two")},
		"beside a driver":         {logs: oneLog(), want: []string{lets}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{retained}
			if one.known != "" {
				objects = append(objects, knownTo(one.known, "u-c"))
			}
			b := newBench(t, func(s *setup) { s.Intents, s.late = one.logs, true }, objects...)
			if one.known == "" {
				b.works(kindVolume, retained.Name)
			} else {
				b.errs(kindVolume, retained.Name, errOpen.Error())
			}
			b.wrote(one.want...)
			if one.known == "" {
				return
			}
			log := b.api.CoreV1().ConfigMaps(volume.NamespaceSystem)
			if err := log.Delete(t.Context(), one.known+"-1", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			b.works(kindVolume, retained.Name)
			b.wrote("delete configmaps "+one.known+"-1", lets)
		})
	}
}

// knownTo returns an object of a log that has the intent of a claim.
func knownTo(log, uid string) *corev1.ConfigMap {
	o := begun(types.UID(uid), "pvc-"+uid)
	o.Name, o.Labels[volume.LabelIntents] = log+"-1", log
	return o
}

// TestMissingAfterARestart: a process that has never called the driver of an unresolved intent tells that it is
// missing, unless whoever called it has resolved the intent meanwhile.
func TestMissingAfterARestart(t *testing.T) {
	for _, resolved := range []bool{false, true} {
		t.Run(fmt.Sprint("resolved ", resolved), func(t *testing.T) {
			log := identity.DriverIntents(driverName)
			b := newBench(t, func(s *setup) { s.Intents, s.late, s.Lateness = Standalone(), true, time.Nanosecond },
				knownTo(log, "u-c"), claim("c"), class())
			b.sweeps()
			if resolved {
				err := b.api.CoreV1().ConfigMaps(volume.NamespaceSystem).Delete(t.Context(), log+"-1", metav1.DeleteOptions{})
				if err != nil {
					t.Fatal(err)
				}
			}
			b.works(kindClaim, "u-c")
			if resolved {
				b.told()
			} else {
				b.told([5]string{"Warning", "DriverMissing", "c", driverName, "has not registered, and may have made a volume"})
			}
			b.called()
		})
	}
}
