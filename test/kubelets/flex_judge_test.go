package kubelets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/kubelet"
	"volplane.dev/volplane/test/internal/upstream"
)

// flexLimit is the time limit of the whole trial, which takes a minute on an idle machine.
const flexLimit = 8 * time.Minute

// TestFlexBridgeIsInTree: in a cluster of Kubernetes with a kubelet, the same FlexVolumes are attached and mounted
// first by Kubernetes' in-tree plugin, and then by the bridge. Pods find the same data, and the drivers get the same
// calls, except as the rows say. Then a volume is moved to the bridge and back, and the bridge is killed while Pods use
// its volumes.
func TestFlexBridgeIsInTree(t *testing.T) {
	j := newFlexJudge(t)
	for _, g := range flexPodCases() {
		j.prepare(g)
	}
	j.rewrite()
	sides, lines := map[string]seenBy{}, map[string][]string{}
	for _, side := range []string{theirs, ours} {
		sides[side] = j.round(side)
	}
	for _, side := range []string{theirs, ours} {
		lines[side] = j.lines(sides[side])
	}
	compareCalls(t, flexRows(), lines[ours], lines[theirs])
	sameOrder(t, lines[ours], lines[theirs])
	neverTwice(t, j.calls(ours))
	spaced(t, j.calls(ours))
	if t.Failed() {
		t.Logf("theirs:\n%s\nours:\n%s", strings.Join(lines[theirs], "\n"), strings.Join(lines[ours], "\n"))
	}
	j.moves()
	j.killed()
}

// flexJudge is a cluster with the example drivers for both sides, on one node:
// the kubelet's in-tree plugin has its own plugin directory, and the bridge
// another one.
type flexJudge struct {
	*cluster.Cluster
	t   *testing.T
	ctx context.Context //nolint:containedctx // that of the test
	// dir has everything that is not the kubelet's; root is the kubelet's directory.
	dir, root string
	s         side
	bridge    *upstream.Program
	// data is what Pods have to find, by guest.
	data map[string]string
}

func newFlexJudge(t *testing.T) *flexJudge {
	t.Helper()
	// The path of the bridge's root directory has three parts.
	dir, err := os.MkdirTemp("/tmp", "flex-")
	if err != nil {
		t.Fatal(err)
	}
	j := &flexJudge{t: t, dir: dir, data: map[string]string{}}
	t.Cleanup(j.clean)
	var cancel context.CancelFunc
	j.ctx, cancel = context.WithTimeout(t.Context(), flexLimit)
	t.Cleanup(cancel)
	j.must(os.MkdirAll(j.pool(), 0o700))
	for _, side := range []string{theirs, ours} {
		j.install(side, "lofs")
		j.install(side, "scratch")
	}
	j.Cluster = cluster.Start(t)
	j.ControllersWith(t, []string{
		"--flex-volume-plugin-dir=" + filepath.Join(dir, theirs), "--attach-detach-reconcile-sync-period=2s",
	},
		"persistentvolume-binder-controller", "persistentvolume-attach-detach-controller",
		"persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller", "persistentvolume-expander-controller")
	// A kubelet looks for volumes to expand when it syncs Pods.
	j.root = j.KubeletWith(t, kubelet.Options{
		Node: "n1", PluginDir: filepath.Join(dir, theirs), Tuning: "syncFrequency: 2s",
	})
	j.serve()
	j.createObjects()
	j.s = side{Name: "cluster", Server: j, Client: j.Client, Conflicts: &atomic.Int64{}}
	j.s.Ours(t, dial(t, j.socket("lofs"), j.socket("scratch")), "attacher", "resizer")
	return j
}

func (j *flexJudge) must(err error) {
	j.t.Helper()
	if err != nil {
		j.t.Fatal(err)
	}
}

func (j *flexJudge) eventually(notYet func() string) {
	j.t.Helper()
	upstream.Eventually(j.ctx, j.t, notYet)
}

// pool is where the drivers of both sides keep their data.
func (j *flexJudge) pool() string { return filepath.Join(j.dir, "pool") }

func (j *flexJudge) socket(driver string) string {
	return filepath.Join(j.root, "plugins", driver+".example.com", "csi.sock")
}

// serve runs the bridge, and waits until the kubelet has registered its drivers.
func (j *flexJudge) serve() {
	j.t.Helper()
	j.bridge = upstream.Start(j.t, "volplane", "flex", "bridge", "--node=n1", "--objects",
		"--kubeconfig="+j.AdminKubeconfig(), "--dir="+filepath.Join(j.dir, ours), "--root-dir="+filepath.Join(j.dir, "root"),
		"--socket-dir="+filepath.Join(j.root, "plugins"),
		"--plugin-registration-path="+filepath.Join(j.root, "plugins_registry"))
	j.eventually(func() string {
		n, err := j.Client.StorageV1().CSINodes().Get(j.ctx, "n1", metav1.GetOptions{})
		if err != nil || len(n.Spec.Drivers) != 2 {
			return fmt.Sprintf("the drivers are not registered: %v %v", n, err)
		}
		objects, err := j.Client.StorageV1().CSIDrivers().List(j.ctx, metav1.ListOptions{})
		if err != nil || len(objects.Items) != 2 {
			return fmt.Sprintf("the drivers have no objects: %v %v", objects, err)
		}
		return ""
	})
}

// createObjects creates what all Pods need, and a node that cannot be reached.
func (j *flexJudge) createObjects() {
	j.t.Helper()
	core, storage := j.Client.CoreV1(), j.Client.StorageV1()
	_, err := core.ServiceAccounts("default").Create(j.ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	j.must(err)
	_, err = core.Secrets("default").Create(j.ctx, flexSecret(), metav1.CreateOptions{})
	j.must(err)
	_, err = storage.StorageClasses().Create(j.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "grows"}, Provisioner: "nobody", AllowVolumeExpansion: ptr.To(true),
	}, metav1.CreateOptions{})
	j.must(err)
	_, err = core.Nodes().Create(j.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "far", Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
	}}, metav1.CreateOptions{})
	j.must(err)
	_, err = storage.CSINodes().Create(j.ctx,
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "far"}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: "lofs.example.com", NodeID: "far"}},
		}}, metav1.CreateOptions{})
	j.must(err)
}

// rewrite puts the drivers in place again and again, and waits until the bridge has
// called init of one of the last ones.
func (j *flexJudge) rewrite() {
	j.t.Helper()
	const times = 5
	var last int64
	for range times {
		last = time.Now().UnixNano()
		for _, side := range []string{theirs, ours} {
			j.install(side, "lofs")
			j.install(side, "scratch")
		}
	}
	for _, driver := range []string{"lofs", "scratch"} {
		j.eventually(func() string {
			if !slices.ContainsFunc(j.calls(ours), func(c flexCall) bool {
				return c.Driver == driver && c.Args[0] == "init" && c.Began > last
			}) {
				return driver + " is not asked what it can do"
			}
			return ""
		})
	}
}

// prepare makes what a guest finds.
func (j *flexJudge) prepare(g flexPodCase) {
	j.t.Helper()
	if !g.made {
		return
	}
	j.data[g.name] = "made before"
	share := filepath.Join(j.pool(), g.file(""))
	j.must(os.Mkdir(share, 0o755)) //nolint:gosec // as Pods find it
	j.must(os.WriteFile(filepath.Join(share, "file"), []byte(j.data[g.name]), 0o600))
	if g.driver == "lofs" {
		j.do("mkfs.ext4", "-q", "-d", share, share+".img", "64M")
	}
}

func (j *flexJudge) do(name string, args ...string) {
	j.t.Helper()
	if said, err := exec.CommandContext(j.ctx, name, args...).CombinedOutput(); err != nil {
		j.t.Fatalf("%s %q: %v: %s", name, args, err, said)
	}
}

// clean removes what is left, and reports it.
func (j *flexJudge) clean() {
	points, err := mount.Below(j.dir)
	j.must(err)
	for _, p := range slices.Backward(points) {
		j.t.Errorf("left mounted: %s", p.Path)
		j.must(mount.Detach(p.Path))
	}
	for _, image := range j.devices() {
		j.t.Errorf("a loop device is left: %s", image)
		j.must(mount.LoopDetach(image))
	}
	j.must(os.RemoveAll(j.dir))
}

// devices returns the files of the pool that have a loop device.
func (j *flexJudge) devices() []string {
	j.t.Helper()
	images, err := filepath.Glob(filepath.Join(j.pool(), "*.img"))
	j.must(err)
	return slices.DeleteFunc(images, func(image string) bool {
		device, err := mount.LoopFind(image)
		j.must(err)
		return device == ""
	})
}

// round creates the guests on a side, lets them use their volumes, and deletes them.
func (j *flexJudge) round(side string) seenBy {
	j.t.Helper()
	begin, out := time.Now(), seenBy{name: side, uids: map[string]string{}}
	for _, g := range flexPodCases() {
		if v, c := g.volumeOn(side); v != nil {
			j.create(v, c)
		}
	}
	for _, g := range flexPodCases() {
		out.uids[g.name] = j.come(side, g)
	}
	for _, g := range flexPodCases() {
		if g.far {
			j.eventually(func() string { return j.attachedTo("far", g.on(side)) })
			continue
		}
		j.runs(g.on(side))
		out.pods = append(out.pods, j.use(side, g))
		if side == theirs && g.driver == "lofs" {
			j.eventually(func() string {
				if !j.called(side, "isattached", g.on(side)) {
					return "nobody asks whether " + g.on(side) + " is attached"
				}
				return ""
			})
		}
	}
	j.grow(side, "grown-"+side)
	for _, g := range flexPodCases() {
		j.delete(g.on(side))
	}
	j.eventually(j.left)
	j.t.Logf("%s: all have come and gone after %v", side, time.Since(begin).Round(time.Millisecond))
	out.names = strings.NewReplacer(append([]string{j.root, "ROOT", filepath.Join(j.dir, "root"), "ROOT"},
		flexWords(side, out.uids)...)...)
	return out
}

// come creates a guest's Pod and returns its UID.
func (j *flexJudge) come(side string, g flexPodCase) string {
	j.t.Helper()
	if !g.inline {
		j.bound(g.on(side))
	}
	pod, err := j.Client.CoreV1().Pods("default").Create(j.ctx, g.podOn(side), metav1.CreateOptions{})
	j.must(err)
	return string(pod.UID)
}

func (j *flexJudge) create(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
	j.t.Helper()
	_, err := j.Client.CoreV1().PersistentVolumes().Create(j.ctx, v, metav1.CreateOptions{})
	j.must(err)
	_, err = j.Client.CoreV1().PersistentVolumeClaims("default").Create(j.ctx, c, metav1.CreateOptions{})
	j.must(err)
}

// bound waits until a claim has its volume.
func (j *flexJudge) bound(claim string) {
	j.t.Helper()
	j.eventually(func() string {
		c, err := j.Client.CoreV1().PersistentVolumeClaims("default").Get(j.ctx, claim, metav1.GetOptions{})
		if err != nil || c.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("claim %s is not bound: %+v %v", claim, c.Status, err)
		}
		return ""
	})
}

// runs waits until the kubelet lets a Pod run, which then has its volumes.
func (j *flexJudge) runs(name string) {
	j.t.Helper()
	j.eventually(func() string {
		pod, err := j.Client.CoreV1().Pods("default").Get(j.ctx, name, metav1.GetOptions{})
		if err != nil || pod.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("pod %s does not run: %+v %v", name, pod.Status, err)
		}
		return ""
	})
}

// attachedTo says that a volume is not attached to a node yet.
func (j *flexJudge) attachedTo(node, volume string) string {
	n, err := j.Client.CoreV1().Nodes().Get(j.ctx, node, metav1.GetOptions{})
	if err != nil || !slices.ContainsFunc(n.Status.VolumesAttached, func(v corev1.AttachedVolume) bool {
		return strings.HasSuffix(string(v.Name), volume)
	}) {
		return fmt.Sprintf("%s is not attached to %s: %+v %v", volume, node, n.Status, err)
	}
	return ""
}

// path is where the kubelet has the volume of a Pod, by whichever plugin.
func (j *flexJudge) path(pod string) string {
	j.t.Helper()
	p, err := j.Client.CoreV1().Pods("default").Get(j.ctx, pod, metav1.GetOptions{})
	j.must(err)
	points, err := mount.Below(filepath.Join(j.root, "pods", string(p.UID), "volumes"))
	if err != nil || len(points) != 1 {
		j.t.Fatalf("pod %s has mounts %+v: %v", pod, points, err)
	}
	return points[0].Path
}

// use reads and writes as a Pod would, and describes the result.
func (j *flexJudge) use(side string, g flexPodCase) string {
	j.t.Helper()
	path := j.path(g.on(side))
	file := filepath.Join(path, "file")
	got, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		j.t.Error(err)
	}
	if string(got) != j.data[g.name] {
		j.t.Errorf("%s reads %q, not %q", g.on(side), got, j.data[g.name])
	}
	writing := "may write"
	switch err := os.WriteFile(file, []byte(side+" wrote this"), 0o600); {
	case errors.Is(err, unix.EROFS):
		writing = "may not write"
	case err != nil:
		j.t.Error(err)
	case g.keeps:
		j.data[g.name] = side + " wrote this"
	}
	return fmt.Sprintf("%s: the Pod has %s and %s", g.name, describe(path), writing)
}

// grow requests more, and waits until the claim and the filesystem have it. At their side
// the administrator expands the volume: no program calls expandvolume.
func (j *flexJudge) grow(side, claim string) {
	j.t.Helper()
	const size = 400 << 20
	if side == theirs {
		image := filepath.Join(j.pool(), "file-of-"+claim+".img")
		j.must(os.Truncate(image, size))
		device, err := mount.LoopFind(image)
		j.must(err)
		j.do("losetup", "--set-capacity", device)
		_, err = j.Client.CoreV1().PersistentVolumes().Patch(j.ctx, claim, types.MergePatchType,
			[]byte(`{"spec":{"capacity":{"storage":"400Mi"}}}`), metav1.PatchOptions{})
		j.must(err)
	}
	_, err := j.Client.CoreV1().PersistentVolumeClaims("default").Patch(j.ctx, claim, types.MergePatchType,
		[]byte(`{"spec":{"resources":{"requests":{"storage":"400Mi"}}}}`), metav1.PatchOptions{})
	j.must(err)
	j.eventually(func() string {
		c, err := j.Client.CoreV1().PersistentVolumeClaims("default").Get(j.ctx, claim, metav1.GetOptions{})
		if err != nil || c.Status.Capacity.Storage().Value() != size {
			return fmt.Sprintf("claim %s has %+v: %v", claim, c.Status, err)
		}
		return ""
	})
	var fs unix.Statfs_t
	j.must(unix.Statfs(j.path(claim), &fs))
	if has := int64(fs.Blocks) * fs.Bsize; has < size*4/5 {
		j.t.Errorf("the filesystem of %s has %d bytes", claim, has)
	}
}

// delete deletes a Pod.
func (j *flexJudge) delete(name string) {
	j.t.Helper()
	pods, options := j.Client.CoreV1().Pods("default"), metav1.DeleteOptions{}
	pod, err := pods.Get(j.ctx, name, metav1.GetOptions{})
	j.must(err)
	if pod.Spec.NodeName == "far" {
		// No kubelet says that it has ended.
		options.GracePeriodSeconds = ptr.To[int64](0)
	}
	j.must(pods.Delete(j.ctx, name, options))
}

// left describes what is left of Pods in the cluster, and on the node.
func (j *flexJudge) left() string {
	pods, err := j.Client.CoreV1().Pods("default").List(j.ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) > 0 {
		return fmt.Sprintf("%d pods are left, %v", len(pods.Items), err)
	}
	all, err := j.Client.StorageV1().VolumeAttachments().List(j.ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) > 0 {
		return fmt.Sprintf("attachments are left: %v %v", all.Items, err)
	}
	nodes, err := j.Client.CoreV1().Nodes().List(j.ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, n := range nodes.Items {
		if len(n.Status.VolumesAttached)+len(n.Status.VolumesInUse) > 0 {
			return fmt.Sprintf("node %s has %v, uses %v", n.Name, n.Status.VolumesAttached, n.Status.VolumesInUse)
		}
	}
	return j.leftBehind() + below(j.t, j.root)
}

// leftBehind returns what drivers and the bridge have not removed.
func (j *flexJudge) leftBehind() string {
	j.t.Helper()
	for what, pattern := range map[string]string{
		"a driver takes for attached": "pool/attached/*/*", "the bridge has a record": "root/state/volumes/*/*/*",
	} {
		files, err := filepath.Glob(filepath.Join(j.dir, pattern))
		if j.must(err); len(files) > 0 {
			return fmt.Sprintf("%s: %v ", what, files)
		}
	}
	if points, err := mount.Below(filepath.Join(j.dir, "root")); err != nil || len(points) > 0 {
		return fmt.Sprintf("the bridge has mounted %v %v ", points, err)
	}
	if devices := j.devices(); len(devices) > 0 {
		return fmt.Sprintf("devices are left of %v ", devices)
	}
	return ""
}
