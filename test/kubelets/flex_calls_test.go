package kubelets

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/flexvolume"
	volumetest "k8s.io/kubernetes/pkg/volume/testing"
	mountutils "k8s.io/mount-utils"
	"k8s.io/utils/exec"
	"k8s.io/utils/ptr"

	decideflex "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/testkit/golden"
)

// flexDriver answers with these branches and records its arguments: their number, and each on a line.
func flexDriver(root, branches string) string {
	return "#!/bin/sh\n[ \"$1\" = init ] || printf '%s\\n' \"$#\" \"$@\" >>'" + root +
		"/calls'\ncase \"$1\" in\n" + branches + `
*) echo '{"status":"Not supported"}'; exit 1 ;;
esac
`
}

// flexCase is a driver and one volume of it in a Pod.
type flexCase struct {
	name, branches string
	inline         bool
	source         corev1.FlexPersistentVolumeSource
	group          *int64
}

func flexCases() []flexCase {
	const ok, mounts = `echo '{"status":"Success"}' ;;`, `mount -t tmpfs t "$2"; echo '{"status":"Success"}' ;;`
	const unmounts = `umount "$2"; echo '{"status":"Success"}' ;;`
	odd := map[string]string{"server": "192.168.0.1:1234", "path": `/a b/"<c>&'`, "empty": "", "ünï": "\u2028"}
	return []flexCase{
		{
			"attachable, all operations, volume", `init) ` + ok + `
getvolumename) echo '{"status":"Success","volumeName":"pool/7"}' ;;
attach) echo '{"status":"Success","device":"/dev/x"}' ;;
isattached) echo '{"status":"Success","attached":true}' ;;
waitforattach) echo '{"status":"Success","device":"/dev/y"}' ;;
mountdevice|mount) ` + mounts + `
expandvolume|expandfs|detach) ` + ok + `
unmount|unmountdevice) ` + unmounts, false,
			corev1.FlexPersistentVolumeSource{
				Driver: "example.com/t", FSType: "ext4", Options: odd,
				SecretRef: &corev1.SecretReference{Name: "s", Namespace: "other"},
			},
			ptr.To(int64(2000)),
		},
		{
			"mount only, inline, read-only", `init) echo '{"status":"Success","capabilities":{"attach":false}}' ;;
mount) ` + mounts + `
unmount) ` + unmounts, true,
			corev1.FlexPersistentVolumeSource{
				Driver: "example.com/t", ReadOnly: true, Options: odd, SecretRef: &corev1.SecretReference{Name: "s"},
			},
			nil,
		},
		{
			"mount only, volume without options", `init) echo '{"status":"Success","capabilities":{"attach":false}}' ;;
mount) ` + mounts + `
unmount) ` + unmounts, false,
			corev1.FlexPersistentVolumeSource{Driver: "example.com/t"},
			ptr.To(int64(0)),
		},
		{
			"nothing but init", `init) ` + ok, false,
			corev1.FlexPersistentVolumeSource{Driver: "example.com/t"},
			nil,
		},
		{
			"mount warns on stderr", `init) echo '{"status":"Success","capabilities":{"attach":false}}' ;;
mount) echo 'warning: slow' >&2; ` + mounts + `
unmount) ` + unmounts, false,
			corev1.FlexPersistentVolumeSource{Driver: "example.com/t"},
			nil,
		},
	}
}

// flexStepNames are what the steps of both hosts are.
func flexStepNames() []string {
	return []string{
		"name", "attach", "isattached", "waitforattach", "mountdevice", "mount", "mount again", "expandvolume", "expandfs",
		"unmount", "unmountdevice", "detach",
	}
}

func (c flexCase) secret() *corev1.Secret {
	namespace := "shop"
	if c.source.SecretRef != nil && c.source.SecretRef.Namespace != "" {
		namespace = c.source.SecretRef.Namespace
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: namespace}, Type: "example.com/t",
		Data: map[string][]byte{"password": []byte("$(x)'\"\\\n"), "user": {0xff, 0x00}},
	}
}

func flexPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "b2f"},
		Spec:       corev1.PodSpec{ServiceAccountName: "default"},
	}
}

// kubeletHost is a host of volume plugins that mounts.
type kubeletHost struct{ volumetest.FakeVolumeHost }

func (kubeletHost) GetMounter() mountutils.Interface { return mountutils.New("") }

// kubernetesSteps are the steps of kube-controller-manager and the kubelet, in the order of their operation generator.
func (c flexCase) kubernetesSteps(t *testing.T, root string) []func() error {
	t.Helper()
	prober := flexvolume.GetDynamicPluginProber(t.Context(), filepath.Join(root, "exec"), exec.New())
	if err := prober.Init(); err != nil {
		t.Fatal(err)
	}
	events, err := prober.Probe()
	if err != nil || len(events) != 1 {
		t.Fatal(events, err)
	}
	host := kubeletHost{volumetest.NewFakeVolumeHost(t, root, clientset.New(c.secret()), nil)}
	if err := events[0].Plugin.Init(host); err != nil {
		t.Fatal(err)
	}
	spec := c.spec()
	v := &kubeletVolume{c: c, root: root, spec: spec, plugin: events[0].Plugin}
	if p, ok := v.plugin.(volume.AttachableVolumePlugin); ok {
		v.attacher, err = p.NewAttacher()
		if err != nil {
			t.Fatal(err)
		}
		if v.detacher, err = p.NewDetacher(); err != nil {
			t.Fatal(err)
		}
	}
	return []func() error{
		v.getName, v.attach, v.isAttached, v.waitForAttach, v.mountDevice, v.mount, v.mount, v.expandVolume, v.expandFS,
		v.unmount, v.unmountDevice, v.detach,
	}
}

func (c flexCase) spec() *volume.Spec {
	if c.inline {
		var ref *corev1.LocalObjectReference
		if c.source.SecretRef != nil {
			ref = &corev1.LocalObjectReference{Name: c.source.SecretRef.Name}
		}
		return volume.NewSpecFromVolume(
			&corev1.Volume{Name: "pv-1", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{
				Driver: c.source.Driver, FSType: c.source.FSType, ReadOnly: c.source.ReadOnly, Options: c.source.Options,
				SecretRef: ref,
			}}})
	}
	return volume.NewSpecFromPersistentVolume(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec:       corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &c.source}},
	}, false)
}

// kubeletVolume is a volume in the hands of Kubernetes' code.
type kubeletVolume struct {
	c                 flexCase
	root, device, dir string
	spec              *volume.Spec
	plugin            volume.VolumePlugin
	attacher          volume.Attacher
	detacher          volume.Detacher
}

func (v *kubeletVolume) getName() error {
	if v.attacher == nil {
		return nil
	}
	_, err := v.plugin.GetVolumeName(v.spec)
	return err
}

func (v *kubeletVolume) attach() (err error) {
	if v.attacher != nil {
		v.device, err = v.attacher.Attach(v.spec, "node-1")
	}
	return err
}

func (v *kubeletVolume) isAttached() error {
	if v.attacher == nil {
		return nil
	}
	_, err := v.attacher.VolumesAreAttached([]*volume.Spec{v.spec}, "node-1")
	return err
}

func (v *kubeletVolume) waitForAttach() (err error) {
	if v.attacher != nil {
		v.device, err = v.attacher.WaitForAttach(v.spec, v.device, flexPod(), time.Minute)
	}
	return err
}

func (v *kubeletVolume) mountDevice() (err error) {
	if v.attacher == nil {
		return nil
	}
	mounter := v.attacher.(volume.DeviceMounter)
	if v.dir, err = mounter.GetDeviceMountPath(v.spec); err != nil {
		return err
	}
	return mounter.MountDevice(v.spec, v.device, v.dir, volume.DeviceMounterArgs{})
}

func (v *kubeletVolume) mount() error {
	m, err := v.plugin.NewMounter(v.spec, flexPod())
	if err != nil {
		return err
	}
	return m.SetUp(volume.MounterArgs{FsGroup: v.c.group})
}

func (v *kubeletVolume) expandVolume() error {
	if v.attacher == nil {
		return nil
	}
	_, err := v.plugin.(volume.ExpandableVolumePlugin).ExpandVolumeDevice(v.spec, resource.MustParse("2Gi"),
		resource.MustParse("1Gi"))
	return err
}

func (v *kubeletVolume) expandFS() error {
	if v.attacher == nil {
		return nil
	}
	_, err := v.plugin.(volume.NodeExpandableVolumePlugin).NodeExpand(volume.NodeResizeOptions{
		VolumeSpec: v.spec, DevicePath: v.device, DeviceMountPath: v.podDir(), NewSize: resource.MustParse("2Gi"),
		OldSize: resource.MustParse("1Gi"),
	})
	return err
}

func (v *kubeletVolume) podDir() string { return flexPodDir(v.root) }

func flexPodDir(root string) string {
	return filepath.Join(root, "pods", "b2f", "volumes", "example.com~t", "pv-1")
}

func (v *kubeletVolume) unmount() error {
	u, err := v.plugin.NewUnmounter("pv-1", "b2f")
	if err != nil {
		return err
	}
	return u.TearDown()
}

func (v *kubeletVolume) unmountDevice() error {
	if v.attacher == nil {
		return nil
	}
	return v.detacher.(volume.DeviceUnmounter).UnmountDevice(v.dir)
}

func (v *kubeletVolume) detach() error {
	if v.attacher == nil {
		return nil
	}
	return v.detacher.Detach("pv-1", "node-1")
}

// ourVolume is the same in ours.
type ourVolume struct {
	*driver.Driver
	c                  flexCase
	root, device, name string
	v                  decideflex.Volume
}

// ourSteps are what ours does with the same.
func (c flexCase) ourSteps(t *testing.T, root string) []func() error {
	t.Helper()
	d, err := driver.Probe(t.Context(), decideflex.Name{Vendor: "example.com", Driver: "t"},
		filepath.Join(root, "exec", "example.com~t", "t"), driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := &ourVolume{Driver: d, c: c, root: root, v: decideflex.Volume{
		Name: "pv-1", FSType: c.source.FSType, ReadOnly: c.source.ReadOnly, Options: c.source.Options, FSGroup: c.group,
		Pod: decideflex.PodInfo{Name: "web-0", Namespace: "shop", UID: "b2f", ServiceAccount: "default"},
	}}
	if c.source.SecretRef != nil {
		o.v.Secrets = map[string]string{}
		for key, value := range c.secret().Data {
			o.v.Secrets[key] = string(value)
		}
	}
	ctx := t.Context()
	steps := []func() error{
		func() (err error) { o.name, err = d.VolumeName(ctx, o.v); return err },
		func() (err error) { o.device, err = d.Attach(ctx, o.v, "node-1"); return err },
		func() error { _, _, err := d.IsAttached(ctx, o.v, "node-1"); return err },
		func() (err error) { o.device, err = d.WaitForAttach(ctx, o.device, o.v); return err },
		func() error { _, err := d.MountDevice(ctx, o.deviceDir(), o.device, o.v); return err },
		o.mount(ctx), o.mount(ctx),
		func() error { _, err := d.ExpandVolume(ctx, o.v, o.deviceDir(), 2<<30, 1<<30); return err },
		func() error { return d.ExpandFS(ctx, o.v, o.device, flexPodDir(root), 2<<30, 1<<30) },
		func() error { _, err := d.Unmount(ctx, flexPodDir(root)); return err },
		func() error { _, err := d.UnmountDevice(ctx, o.deviceDir()); return err },
		func() error { return d.Detach(ctx, o.name, "node-1") },
	}
	if !d.Capabilities.Attach {
		for i, name := range flexStepNames() {
			if !slices.Contains([]string{"mount", "mount again", "unmount"}, name) {
				steps[i] = func() error { return nil }
			}
		}
	}
	return steps
}

func (o *ourVolume) deviceDir() string {
	return filepath.Join(o.root, "plugins", "kubernetes.io", "flexvolume", "example.com", "t", "mounts", "pv-1")
}

func (o *ourVolume) mount(ctx context.Context) func() error {
	return func() error {
		_, err := o.Mount(ctx, flexPodDir(o.root), o.deviceDir(), o.v)
		return err
	}
}

// flexPlace creates a root with a driver in it.
func flexPlace(t *testing.T, branches string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "exec", "example.com~t")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	//nolint:gosec // it is to be run
	if err := os.WriteFile(filepath.Join(dir, "t"), []byte(flexDriver(root, branches)), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		points, err := mount.Below(root)
		if err != nil {
			t.Error(err)
		}
		for _, p := range slices.Backward(points) {
			if err := unix.Unmount(p.Path, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	})
	return root
}

// does performs a step and returns its calls of the driver, and whether it failed.
func does(t *testing.T, root string, step func() error) string {
	t.Helper()
	failed := step()
	calls, err := os.ReadFile(filepath.Join(root, "calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(root, "calls")); err != nil {
		t.Fatal(err)
	}
	points, err := mount.Below(root)
	if err != nil {
		t.Fatal(err)
	}
	result := "done"
	if failed != nil {
		result = "failed"
	}
	return fmt.Sprintf("%s%s, %d mounts\n", strings.ReplaceAll(string(calls), root, "ROOT"), result, len(points))
}

// TestFlexCalls compares the calls of a driver by Kubernetes' code and by ours, byte for byte, over the life of a
// volume. The golden file has the differences.
func TestFlexCalls(t *testing.T) {
	var out strings.Builder
	for _, c := range flexCases() {
		fmt.Fprintf(&out, "== %s\n", c.name)
		theirRoot, ourRoot := flexPlace(t, c.branches), flexPlace(t, c.branches)
		theirs, ours := c.kubernetesSteps(t, theirRoot), c.ourSteps(t, ourRoot)
		for i, name := range flexStepNames() {
			a, b := does(t, theirRoot, theirs[i]), does(t, ourRoot, ours[i])
			if a == b && strings.HasPrefix(a, "done") {
				continue // neither calls the driver
			}
			if a == b {
				fmt.Fprintf(&out, "-- %s: the same\n%s", name, indented(a))
				continue
			}
			fmt.Fprintf(&out, "-- %s: DIFFERS; Kubernetes:\n%s   ours:\n%s", name, indented(a), indented(b))
		}
	}
	golden.Equal(t, filepath.Join("testdata", "flex-calls.txt"), out.String())
}

func indented(s string) string {
	return "   " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n   ") + "\n"
}
