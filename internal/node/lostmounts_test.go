package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/testkit"
)

// fuseServers mounts filesystems that this process serves; killAll ends the servers.
type fuseServers struct {
	mu   sync.Mutex
	open []*os.File
}

func (s *fuseServers) mount(target string) error {
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, dev)
	return unix.Mount("test", target, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev.Fd()))
}

func (s *fuseServers) killAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, dev := range s.open {
		_ = dev.Close()
	}
	s.open = nil
}

// detachAll unmounts what a failed test has left.
func (w *world) detachAll() {
	points, _ := mount.Below(w.dir)
	for _, p := range points {
		_ = unix.Unmount(p.Path, unix.MNT_DETACH)
	}
}

func verifyMounts(o *Options) { o.TrustDrivers = false }

func tmpfs(target string) error {
	if err := os.Mkdir(target, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	return unix.Mount("none", target, "tmpfs", 0, "")
}

// TestDeadMount: when the server of a filesystem ends, its mounts are replaced, even if the driver
// cannot unmount them; a Pod whose mount works keeps it.
func TestDeadMount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	servers := &fuseServers{}
	t.Cleanup(servers.killAll)
	d := w.mounting(nil, servers.mount)
	w.mountVolume()
	d.mu.Lock()
	d.mount = tmpfs
	d.mu.Unlock()
	w.pod("q", "a")
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	kept, err := os.Create(filepath.Join(w.dir, "pods/uid-q/volumes/kubernetes.io~csi/pv-a/mount/open"))
	w.must(nil, err)
	defer kept.Close()
	servers.killAll()
	at := filepath.Join(w.dir, "pods/uid-p/volumes/kubernetes.io~csi/pv-a/mount")
	eventually(t, func() string {
		w.agent.volumes.AddAll("")
		if p, mounted, err := mount.At(at); err != nil || !mounted || p.Type != "tmpfs" {
			return fmt.Sprint("at the target: ", p, mounted, err)
		}
		return ""
	})
	w.eventSaid("MountBroken", "its server is gone")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	if got := strings.Count(d.history(), "unpublish:"); got < 2 {
		t.Errorf("the driver took away what it cannot look at: %s", d.history())
	}
	if _, err := kept.WriteString("still mine"); err != nil {
		t.Error(err)
	}
	w.must(nil, kept.Close())
	w.endPods("p", "q")
}

// TestDeadMountIsNotBack: the server of a filesystem ends, and the driver refuses to mount the volume again. The Pod
// is told that it has lost its volume and why it does not have it back, also by an agent that is started meanwhile; a
// Pod that comes later is told the driver's words only.
func TestDeadMountIsNotBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	servers := &fuseServers{}
	t.Cleanup(servers.killAll)
	d := w.mounting(nil, servers.mount)
	w.mountVolume()
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "publish") {
			return status.Error(codes.FailedPrecondition, "the bucket is gone")
		}
		return nil
	})
	servers.killAll()
	d.set(func() { d.mount = tmpfs })
	w.agent.volumes.AddAll("")
	const lost = "MountBroken: the mount of volume pv-a on node n1 is dead, because its server is gone; the mount " +
		"is not back: NodePublishVolume by driver d.example: FailedPrecondition: the bucket is gone"
	w.awaitCondition("p", corev1.ConditionFalse, lost)
	w.heard("Pod", "p", "MountBroken", "the bucket is gone", "user")
	w.stop()
	w.forgetEvents()
	w.run()
	w.heard("Pod", "p", "MountBroken", "the bucket is gone", "user")
	w.awaitCondition("p", corev1.ConditionFalse, lost)
	w.pod("q", "a")
	w.heard("Pod", "q", "FailedMount", "the bucket is gone", "user")
	d.setHook(nil)
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	if r := w.agent.journal.Get("d.example^h-a"); len(r.Lost) > 0 {
		t.Errorf("the loss is still recorded: %v", r.Lost)
	}
	w.endPods("p", "q")
}

// TestDeadMountGoes: a dead mount is removed with its Pod, although the driver cannot stat it.
func TestDeadMountGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	servers := &fuseServers{}
	d := w.mounting(nil, servers.mount)
	w.mountVolume()
	w.stop()
	servers.killAll()
	w.terminate("p")
	w.run()
	w.awaitDeletion("p")
	w.empty()
	if left := d.leftover(); left != "" {
		t.Error("left: ", left)
	}
}

// TestSomebodyUnmounts: somebody unmounts a Pod's volume. The Pod's condition says so until it is
// mounted again.
func TestSomebodyUnmounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hinder, mend func(*testing.T, *world, *fakeDriver)
		reason, told string
	}{
		"the driver goes on": {reason: "MountBroken", told: "another program has unmounted it"},
		"the driver refuses": {
			hinder: func(_ *testing.T, _ *world, d *fakeDriver) {
				d.setHook(func(context.Context, string) error { return status.Error(codes.Internal, "no more") })
			},
			mend:   func(_ *testing.T, _ *world, d *fakeDriver) { d.setHook(nil) },
			reason: "MountBroken", told: "another program has unmounted it; the mount is not back: NodePublishVolume",
		},
		"the driver is away": {
			hinder: func(_ *testing.T, w *world, d *fakeDriver) {
				d.stop()
				w.registered()
			},
			mend:   func(t *testing.T, _ *world, d *fakeDriver) { d.start(t) },
			reason: "DriverMissing", told: "is not registered",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach(driverName))
			w.tune = verifyMounts
			t.Cleanup(w.detachAll)
			d := newFakeDriver(driverName, w.dir)
			d.mount = func(at string) error {
				if err := os.MkdirAll(at, 0o700); err != nil {
					return err
				}
				// The fake driver mounts again only what it does not have.
				d.published = map[string]bool{}
				return tmpfs(at)
			}
			d.start(t)
			w.run()
			w.registered(driverName)
			w.mountVolume()
			if c.hinder != nil {
				c.hinder(t, w, d)
			}
			d.set(func() { d.published = map[string]bool{} })
			at := uses.TargetPath(w.dir, "uid-p", "pv-a", false)
			testkit.Unmount(w.t, at)
			if c.mend != nil {
				w.awaitCondition("p", corev1.ConditionFalse, c.reason+": ")
				w.awaitCondition("p", corev1.ConditionFalse, c.told)
				c.mend(t, w, d)
			}
			w.eventSaid(c.reason, c.told)
			eventually(t, func() string {
				if _, mounted, err := mount.At(at); err != nil || !mounted {
					return fmt.Sprint("it is not mounted anew: ", err)
				}
				return ""
			})
			w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
		})
	}
}

// TestDriverLeavesAMount: a driver reports that it has unmounted a volume, but the mount still exists.
func TestDriverLeavesAMount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	d := w.mounting(nil, tmpfs)
	w.mountVolume()
	d.set(func() { d.mount = nil })
	w.endPods("p")
	if points, err := mount.Below(w.dir); err != nil || len(points) > 0 {
		t.Errorf("mounts: %v, %v", points, err)
	}
}

// TestNothingIsMountedUnconfirmed: no driver is called for a volume until the API has confirmed its
// entry in volumesInUse, because the volume could be detached before.
func TestNothingIsMountedUnconfirmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	var refused atomic.Int32
	w.client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if p := a.(clienttesting.PatchAction).GetPatch(); !strings.Contains(string(p), "volumesInUse") || refused.Load() > 3 {
			return false, nil, nil
		}
		refused.Add(1)
		return true, nil, errors.New("not now")
	})
	d := newFakeDriver(driverName, w.dir)
	var early atomic.Int32
	d.setHook(func(_ context.Context, call string) error {
		if call != "info" && refused.Load() <= 3 {
			early.Add(1)
		}
		return nil
	})
	d.start(t)
	w.run()
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	w.eventSaid("FailedMount", "not now")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	if n := early.Load(); n > 0 {
		t.Errorf("%d calls before it was confirmed: %s", n, d.history())
	}
	// That it is used no more is confirmed before all is forgotten.
	refused.Store(0)
	w.terminate("p")
	eventually(t, func() string {
		if n := refused.Load(); n <= 3 {
			return fmt.Sprint("refused ", n)
		}
		return ""
	})
	w.awaitDeletion("p")
	w.empty()
	if used := w.node().Status.VolumesInUse; len(used) > 0 {
		t.Errorf("in use: %v", used)
	}
}

// TestRestartWithManyVolumes: after a restart, no driver is called for volumes that are mounted
// correctly.
func TestRestartWithManyVolumes(t *testing.T) {
	t.Parallel()
	const many = 500
	w := newWorld(t, noAttach(driverName))
	d := w.mounting(nil, tmpfs)
	for i := range many {
		name := fmt.Sprintf("n%03d", i)
		w.addVolume(driverName, name)
		w.pod(name, name)
	}
	settled := func() string {
		served := 0
		for i := range many {
			if w.agent.volumes.Because(fmt.Sprintf("d.example^h-n%03d", i), "").Reason == "Mounted" {
				served++
			}
		}
		if served < many {
			return fmt.Sprint(served, " are mounted")
		}
		return ""
	}
	eventually(t, settled)
	w.stop()
	d.mu.Lock()
	d.calls = nil
	d.mu.Unlock()
	w.run()
	eventually(t, settled)
	// One more volume shows that the agent is at work.
	w.addVolume(driverName, "new")
	w.pod("new", "new")
	w.awaitCondition("new", corev1.ConditionTrue, "v-new=")
	if got := d.history(); got != "info stage:h-new:: publish:h-new" {
		t.Errorf("calls: %.300s", got)
	}
}
