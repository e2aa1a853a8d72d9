package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/volume"
)

// needing returns objects of another driver and node, which do not block the removal, and one that needs the driver.
func needing(kind string) []runtime.Object {
	pv := func(name, driver string) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver}
		return v
	}
	attachment := func(name, driver, node string) *storagev1.VolumeAttachment {
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}}
		a.Spec.Attacher, a.Spec.NodeName = driver, node
		return a
	}
	pod := func(name, driver, node string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Spec.NodeName, p.Spec.Volumes = node, []corev1.Volume{{Name: "v"}}
		p.Spec.Volumes[0].CSI = &corev1.CSIVolumeSource{Driver: driver}
		return p
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/other^h"}
	out := []runtime.Object{
		node, pv("others", "other"), &corev1.PersistentVolume{}, attachment("others", "other", "n1"),
		attachment("elsewhere", hosted, "n2"), pod("others", "other", "n1"), pod("elsewhere", hosted, "n2"),
	}
	switch kind {
	case "volume":
		out = append(out, pv("pv-1", hosted))
	case "attachment":
		out = append(out, attachment("csi-1", hosted, "n1"))
	case "mount":
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, "kubernetes.io/csi/"+hosted+"^handle")
	case "inline":
		out = append(out, pod("web", hosted, "n1"))
	case "begun":
		out = append(out, begunIn(hosted))
	}
	return out
}

// begunIn is the log of a provisioner that has called two drivers to create volumes, without an answer.
func begunIn(driver string) *corev1.ConfigMap {
	log := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "volplane", Name: "log", Labels: map[string]string{volume.LabelIntents: "log"},
	}, Data: map[string]string{}}
	for uid, driver := range map[string]string{"u1": driver, "u2": "other"} {
		in := &provision.Intent{Driver: driver, Name: "pvc-" + uid}
		in.Claim.UID, in.Claim.Namespace, in.Claim.Name = types.UID(uid), "ns", "data"
		log.Data[uid] = in.String()
	}
	return log
}

// snapshotsOf are contents of snapshots and of groups of two drivers, as the API has them.
func snapshotsOf(driver string) customAPI {
	list := func(driver string) string {
		return fmt.Sprintf(`{"items":[{"metadata":{"name":"of-%s"},"spec":{"driver":%[1]q}}]}`, driver)
	}
	return customAPI{
		"/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents":           list(driver),
		"/apis/groupsnapshot.storage.k8s.io/v1/volumegroupsnapshotcontents": list("other"),
	}
}

// TestRemoveNeeded: a driver that something needs stays, and the error names what needs it.
func TestRemoveNeeded(t *testing.T) {
	for kind, want := range map[string]string{
		"volume":     "it has 1 PersistentVolumes (pv-1)",
		"attachment": "1 volumes are attached to node n1 (csi-1)",
		"mount":      "1 volumes are in use on node n1 (handle)",
		"inline":     "1 Pods on node n1 have inline volumes of it (ns/web)",
		"begun":      "it was asked for 1 volumes and may have created them (pvc-u1)",
		"snapshot":   "it has 1 snapshots (of-" + hosted + ")",
	} {
		t.Run(kind, func(t *testing.T) {
			class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{
				Name: "fast", Labels: map[string]string{volume.LabelMadeBy: driverfile.MadeBy},
			}, Provisioner: hosted}
			s := newStand(t, append(needing(kind), class)...)
			if kind == "snapshot" {
				maps.Copy(s.custom, snapshotsOf(hosted))
			}
			d := own("/bin/a")
			d.Class = "fast"
			if err := s.files.Put(d); err != nil {
				t.Fatal(err)
			}
			err := s.remove(t.Context(), hosted, removal{wait: 50 * time.Millisecond})
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "use --force") {
				t.Errorf("%v; want %s", err, want)
			}
			if _, err := s.files.Get(hosted); err != nil {
				t.Errorf("it is gone: %v", err)
			}
			err = s.remove(t.Context(), hosted, removal{force: true, wait: patience})
			if err != nil || !strings.Contains(s.err.String(), want) {
				t.Errorf("by force: %v; %s", err, s.err)
			}
			if _, err := s.files.Get(hosted); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("by force it stays: %v", err)
			}
			if _, err := s.client.StorageV1().StorageClasses().Get(t.Context(), "fast", metav1.GetOptions{}); err != nil {
				t.Errorf("what is left has no class any more: %v", err)
			}
		})
	}
}

// TestRemoveAfterDelete: the volumes of claims that were deleted just before are unmounted first.
func TestRemoveAfterDelete(t *testing.T) {
	s := newStand(t, needing("mount")...)
	if err := s.files.Put(own("/bin/a")); err != nil {
		t.Fatal(err)
	}
	unmounted := needing("")[0].(*corev1.Node)
	s.client.PrependWatchReactor("nodes", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w := watch.NewRaceFreeFake()
		w.Modify(unmounted)
		return true, w, s.client.Tracker().Update(a.GetResource(), unmounted, "")
	})
	if err := s.remove(t.Context(), hosted, removal{wait: patience}); err != nil {
		t.Error(err)
	}
}

// TestRemoveAfterAnswer: a driver that was called to create a volume that is no longer wanted is removed once it has
// answered what happened to it.
func TestRemoveAfterAnswer(t *testing.T) {
	s := newStand(t, needing("begun")...)
	if err := s.files.Put(own("/bin/a")); err != nil {
		t.Fatal(err)
	}
	told := begunIn("other")
	s.client.PrependWatchReactor("configmaps", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w := watch.NewRaceFreeFake()
		w.Modify(told)
		return true, w, s.client.Tracker().Update(a.GetResource(), told, told.Namespace)
	})
	if err := s.remove(t.Context(), hosted, removal{wait: patience}); err != nil {
		t.Error(err)
	}
}

// TestRemove: the objects that were created for a driver are removed with it, and none that other users have created or
// need.
func TestRemove(t *testing.T) {
	labels := map[string]string{volume.LabelMadeBy: driverfile.MadeBy}
	class := func(driver string, labels map[string]string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", Labels: labels}, Provisioner: driver}
	}
	driver := func(labels map[string]string) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: hosted, Labels: labels}}
	}
	const removed, driverToo = "driver/x.example.com removed\n", "csidriver/x.example.com deleted\n"
	const classToo = "storageclass/fast deleted\n"
	for name, c := range map[string]struct {
		objects []runtime.Object
		want    string
	}{
		"no objects":      {nil, removed},
		"made by add":     {[]runtime.Object{class(hosted, labels), driver(labels)}, removed + classToo + driverToo},
		"by somebody":     {[]runtime.Object{class(hosted, nil), driver(nil)}, removed},
		"another's class": {[]runtime.Object{class("other", labels), driver(labels)}, removed + driverToo},
		"another node":    {[]runtime.Object{driver(labels), csiNode("n2", hosted)}, removed},
		"this node":       {[]runtime.Object{driver(labels), csiNode("n1", hosted)}, removed + driverToo},
	} {
		s := newStand(t, append(needing(""), c.objects...)...)
		d := own("/bin/a")
		d.Class = "fast"
		if err := s.files.Put(d); err != nil {
			t.Fatal(err)
		}
		if err := s.remove(t.Context(), hosted, removal{wait: patience}); err != nil || s.out.String() != c.want {
			t.Errorf("%s: %v\n%s", name, err, s.out)
		}
	}
}

// TestRemoveBlindly: without the API the volumes are unknown; a broken file can be removed, too.
func TestRemoveBlindly(t *testing.T) {
	s := newStand(t)
	s.hostDrivers.client, s.absent = nil, errors.New("no API server answers")
	if err := s.files.Put(own("/bin/a")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(string(s.files), hosted+".yaml")
	if err := os.WriteFile(path, []byte("a: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	err := s.remove(t.Context(), hosted, removal{wait: patience})
	if err == nil || !strings.Contains(err.Error(), "whether driver x.example.com has volumes is not known: no API") {
		t.Error(err)
	}
	if err := s.remove(t.Context(), hosted, removal{force: true, wait: patience}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file stays: %v", err)
	}
	if err := s.remove(t.Context(), hosted, removal{force: true, wait: patience}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was removed before: %v", err)
	}
}

// TestRemoveWaits: a driver is removed when its processes have ended, which another process supervises, and only
// then are its objects deleted. A process that stays is named.
func TestRemoveWaits(t *testing.T) {
	s := newStand(t, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{
		Name: hosted, Labels: map[string]string{volume.LabelMadeBy: driverfile.MadeBy},
	}})
	lock, err := durable.TryLock(filepath.Join(s.state, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := s.files.Put(own("/bin/a")); err != nil {
		t.Fatal(err)
	}
	process := startTimeOf(t, os.Getpid())
	s.record(t, hosted, func(r *supervise.Record) { r.PID, r.StartTime = os.Getpid(), process })
	// What belongs to another driver is not waited for.
	s.record(t, hosted+"-nodes", func(*supervise.Record) {})
	s.client.PrependReactor("delete", "csidrivers", func(clienttesting.Action) (bool, runtime.Object, error) {
		if left := s.leftPrograms(hosted); len(left) > 0 {
			t.Errorf("its CSIDriver is deleted while %q live", left)
		}
		return false, nil, nil
	})
	ended := make(chan error)
	go func() { ended <- s.remove(t.Context(), hosted, removal{wait: patience}) }()
	s.await(t, func() bool { _, err := s.files.Get(hosted); return errors.Is(err, fs.ErrNotExist) })
	if err := os.Remove(filepath.Join(s.state, hosted+".json")); err != nil {
		t.Fatal(err)
	}
	want := "driver/x.example.com removed\ncsidriver/x.example.com deleted\n"
	if err := <-ended; err != nil || s.out.String() != want {
		t.Errorf("%v: %s", err, s.out)
	}
	s.record(t, hosted, func(r *supervise.Record) { r.PID, r.StartTime = os.Getpid(), process })
	if err := s.files.Put(own("/bin/a")); err != nil {
		t.Fatal(err)
	}
	want = fmt.Sprintf("x.example.com has %d (", os.Getpid())
	if err := s.remove(t.Context(), hosted, removal{wait: soon}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a process stays: %v", err)
	}
	// Then there is no file any more.
	if err := s.removed(t.Context(), hosted, removal{wait: soon}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a process stays when it is repeated: %v", err)
	}
}

// TestRemoveAlone: if no process runs the drivers, remove ends their processes by itself.
func TestRemoveAlone(t *testing.T) {
	s := newStand(t)
	if err := s.files.Put(own("/bin/a")); err != nil {
		t.Fatal(err)
	}
	process := exec.Command("/bin/sh", "-c", "read forever")
	stdin, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	s.record(t, hosted, func(r *supervise.Record) {
		r.PID, r.StartTime = process.Process.Pid, startTimeOf(t, process.Process.Pid)
	})
	if err := s.remove(t.Context(), hosted, removal{wait: patience}); err != nil {
		t.Error(err)
	}
	if err := process.Process.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("the process lives: %v", err)
	}
	if left, err := supervise.Names(s.state); err != nil || len(left) > 0 {
		t.Errorf("left are records of %q, %v", left, err)
	}
}

// startTimeOf returns when a process has started, as a record has it.
func startTimeOf(t *testing.T, pid int) uint64 {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	const field = 22 - 3
	start, err := strconv.ParseUint(strings.Fields(rest)[field], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return start
}

// TestRestart: what this host does not start it does not restart, and the error says how far it is.
func TestRestart(t *testing.T) {
	s := newStand(t)
	if err := s.restart(t.Context(), hosted, patience); err == nil || !strings.Contains(err.Error(), "has no file in") {
		t.Error(err)
	}
	if err := s.files.Put(external("/run/x")); err != nil {
		t.Fatal(err)
	}
	if err := s.restart(t.Context(), hosted, patience); err == nil || !strings.Contains(err.Error(), "restart it there") {
		t.Error(err)
	}
	if err := s.files.Put(own("/bin/a")); err != nil {
		t.Fatal(err)
	}
	s.record(t, hosted, func(*supervise.Record) {})
	if err := s.restart(t.Context(), hosted, soon); err == nil ||
		!strings.Contains(err.Error(), "driver x.example.com is not restarted after 1ms: x.example.com is ended") {
		t.Errorf("the old process is still named: %v", err)
	}
}

// TestRestarted: a restart is done when the processes are others.
func TestRestarted(t *testing.T) {
	s := newStand(t)
	if err := s.files.Put(own("/bin/a")); err != nil {
		t.Fatal(err)
	}
	s.record(t, hosted, func(*supervise.Record) {})
	if err := s.restart(t.Context(), hosted, 0); err != nil || s.out.String() != "driver/x.example.com restarting\n" {
		t.Errorf("without waiting: %v: %s", err, s.out)
	}
	first, err := s.files.Get(hosted)
	if err != nil || first.RestartedAt == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	ended := make(chan error)
	go func() { ended <- s.restart(t.Context(), hosted, patience) }()
	s.await(t, func() bool { d, err := s.files.Get(hosted); return err == nil && d.RestartedAt != first.RestartedAt })
	s.record(t, hosted, func(r *supervise.Record) { r.StartTime++ })
	if err := <-ended; err != nil || !strings.HasSuffix(s.out.String(), "driver/x.example.com restarted\n") {
		t.Errorf("%v: %s", err, s.out)
	}
	if at, err := time.Parse(time.RFC3339, first.RestartedAt); err != nil || time.Since(at) > patience {
		t.Errorf("%s, %v", at, err)
	}
}
