package node

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
)

// shownWith is shownAt with options of the mount, and more annotations of the Pod: a name, its value, and so on. Its
// driver mounts a filesystem below the volume.
func shownWith(t *testing.T, options string, more ...string) (w *world, host string) {
	t.Helper()
	w = newWorld(t, noAttach(driverName))
	t.Cleanup(w.detachAll)
	w.tune = verifyMounts
	d := newFakeDriver(driverName, w.dir)
	d.mount = func(target string) error {
		return errors.Join(tmpfs(target), tmpfs(filepath.Join(target, "below")))
	}
	d.start(t)
	w.run()
	w.registered(driverName)
	host = t.TempDir()
	t.Cleanup(func() { _ = mount.Detach(host) })
	w.addVolume(driverName, "a")
	w.podWith("p", func(p *corev1.Pod) {
		p.Annotations = map[string]string{volume.AnnMountAt: host}
		if options != "" {
			p.Annotations[volume.AnnMountOptions] = options
		}
		for i := 0; i < len(more); i += 2 {
			p.Annotations[more[i]] = more[i+1]
		}
	}, "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	return w, host
}

// TestHostPathForbids: what is mounted at a path of the host lets no program
// change its user and no device be opened, wherever in it, unless that is asked
// for.
func TestHostPathForbids(t *testing.T) {
	t.Parallel()
	const both = unix.ST_NOSUID | unix.ST_NODEV
	const all = both | unix.ST_RDONLY | unix.ST_NOEXEC | unix.ST_NOATIME | unix.ST_NODIRATIME
	for options, want := range map[string]int64{
		"": both, "suid": unix.ST_NODEV, "dev": unix.ST_NOSUID, "suid,dev": 0, "ro": both | unix.ST_RDONLY,
		"noexec": both | unix.ST_NOEXEC, "noatime": both | unix.ST_NOATIME, "nodiratime": both | unix.ST_NODIRATIME,
		"ro,noexec,noatime,nodiratime": all,
	} {
		t.Run(options, func(t *testing.T) {
			w, host := shownWith(t, options)
			for _, dir := range []string{host, filepath.Join(host, "below")} {
				var st unix.Statfs_t
				if err := unix.Statfs(dir, &st); err != nil || st.Flags&all != want {
					t.Errorf("%s: flags %#x, %v; want %#x of them", dir, st.Flags, err, want)
				}
			}
			w.end("p")
			if left, err := mount.Below(host); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// TestHostPathBelow: what is below the volume is at the host path; what somebody
// else mounts there stays, and is named.
func TestHostPathBelow(t *testing.T) {
	t.Parallel()
	w, host := shownWith(t, "")
	w.must(nil, os.WriteFile(filepath.Join(host, "below/file"), []byte("data"), 0o600))
	target := filepath.Join(w.dir, "pods/uid-p/volumes/kubernetes.io~csi/pv-a/mount")
	if got, err := os.ReadFile(filepath.Join(target, "below/file")); err != nil || string(got) != "data" {
		t.Errorf("the volume has %q, %v", got, err)
	}
	theirs := filepath.Join(host, "theirs")
	w.must(nil, errors.Join(os.Mkdir(theirs, 0o700), unix.Mount("theirs", theirs, "tmpfs", 0, "")))
	w.terminate("p")
	w.heard("Pod", "p", "FailedUnmount", theirs+": another filesystem is mounted there", "user")
	testkit.Unmount(w.t, theirs)
	w.awaitDeletion("p")
	if left, err := mount.Below(host); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestHostPathMadeWhole: what is gone of it is there again.
func TestHostPathMadeWhole(t *testing.T) {
	t.Parallel()
	w, host := shownWith(t, "")
	testkit.Unmount(w.t, filepath.Join(host, "below"))
	eventually(t, func() string {
		w.agent.volumes.AddAll("")
		if left, err := mount.Below(host); err != nil || len(left) != 2 {
			return "it is not whole"
		}
		return ""
	})
	w.end("p")
}

// TestUnmountEnds: whoever unmounts the host path of a Pod that ends so by hand is obeyed; a part that is gone is not
// the whole.
func TestUnmountEnds(t *testing.T) {
	t.Parallel()
	w, host := shownWith(t, "", volume.AnnUnmountEnds, "true")
	target := filepath.Join(w.dir, "pods/uid-p/volumes/kubernetes.io~csi/pv-a/mount")
	testkit.Unmount(w.t, filepath.Join(host, "below"))
	eventually(t, func() string {
		w.agent.volumes.AddAll("")
		// Until it is recorded, an unmount interrupts the agent, which repeats the mount.
		recorded := w.agent.journal.Get("d.example^h-a").Target(target).Serves(host)
		if left, err := mount.Below(host); err != nil || len(left) != 2 || !recorded {
			return "it is not whole"
		}
		return ""
	})
	// Both go at once: between two unmounts, the agent might mount the first one again.
	w.must(nil, unix.Unmount(host, unix.MNT_DETACH))
	w.agent.volumes.AddAll("")
	w.awaitDeletion("p")
	eventually(t, func() string {
		for _, dir := range []string{host, target} {
			if left, err := mount.Below(dir); err != nil || len(left) > 0 {
				return dir + " is mounted"
			}
		}
		return ""
	})
}

// TestHostPathsRefused: volumes are not mounted at, in or over what volumes live
// by, whichever way leads there, nor with options that there are not.
func TestHostPathsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	t.Cleanup(w.detachAll)
	data, other := t.TempDir(), t.TempDir()
	w.must(nil, errors.Join(os.MkdirAll(filepath.Join(data, "pool/volumes"), 0o700),
		os.Mkdir(filepath.Join(other, "bound"), 0o700),
		os.Symlink(data, filepath.Join(other, "link")),
		unix.Mount(filepath.Join(data, "pool"), filepath.Join(other, "bound"), "", unix.MS_BIND, "")))
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(other, "bound"), unix.MNT_DETACH) })
	w.tune = func(o *Options) {
		verifyMounts(o)
		o.Protected = []string{data}
	}
	d := newFakeDriver(driverName, w.dir)
	d.mount = tmpfs
	d.start(t)
	w.run()
	w.registered(driverName)
	for pod, c := range map[string]struct{ path, options, want string }{
		"itself":  {data, "", "which volumes depend on"},
		"in":      {filepath.Join(data, "pool"), "", "which volumes depend on"},
		"over":    {filepath.Dir(data), "", "which volumes depend on"},
		"bound":   {filepath.Join(other, "bound"), "", "leads to a directory that volumes depend on"},
		"in it":   {filepath.Join(other, "bound/volumes"), "", "leads to a directory that volumes depend on"},
		"link":    {filepath.Join(other, "link"), "", "is not a directory"},
		"by link": {filepath.Join(other, "link/pool"), "", "symbolic link"},
		"options": {other, "suid,sync", `option "sync" is not supported; supported are atime`},
	} {
		name := "p" + string(pod[0]) + string(pod[len(pod)-1])
		w.addVolume(driverName, name)
		w.podWith(name, func(p *corev1.Pod) {
			p.Annotations = map[string]string{volume.AnnMountAt: c.path, volume.AnnMountOptions: c.options}
		}, name)
		w.awaitCondition(name, corev1.ConditionFalse, c.want)
	}
	for dir, want := range map[string]int{data: 0, other: 1} {
		if points, err := mount.Below(dir); err != nil || len(points) != want {
			t.Errorf("mounted below %s: %v, %v", dir, points, err)
		}
	}
}
