//go:build linux

package cli

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/door"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Names and sizes of the demo's objects.
const (
	demoClaim  = "demo"
	demoSize   = "320Mi"
	demoGrown  = "640Mi"
	demoNode   = "node1"
	demoSecond = "node2"
	demoFile   = "greeting"
	demoBytes  = 4 << 20
)

func (d *demo) data() string { return filepath.Join(d.dir, "data") }
func (d *demo) pool() string { return filepath.Join(d.data(), "pool") }

func (d *demo) steps() []demoStep {
	return []demoStep{
		{"start a control plane", d.start},
		{"claim a volume", d.claim},
		{"mount it on " + demoNode, func(ctx context.Context) (string, error) { return d.mount(ctx, "writer", "") }},
		{"write a file", d.write},
		{"unmount it", func(ctx context.Context) (string, error) { return "", d.unmount(ctx, "writer") }},
		{"join a second node", d.join},
		{
			"mount it on " + demoSecond, func(ctx context.Context) (string, error) { return d.mount(ctx, "reader", demoSecond) },
		},
		{"read the file back", d.read},
		{"grow the claim", d.grow},
		{"see the mounted file system grown", d.checkGrown},
		{"delete everything", d.remove},
		{"check that nothing is left", d.checkLeftovers},
		{"stop the control plane", func(context.Context) (string, error) { return "", d.stop() }},
	}
}

func (d *demo) start(ctx context.Context) (string, error) {
	var err error
	d.plane, err = startAndWait(ctx, d.dir, "plane.log", d.standalone, "up", "--data-dir", d.data(), "--listen",
		"127.0.0.1:0", "--name", demoNode)
	if err != nil {
		return "", err
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(d.data(), "admin.kubeconfig"))
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1
	if d.client, err = kubernetes.NewForConfig(config); err != nil {
		return "", fmt.Errorf("client: %w", err)
	}
	return config.Host, nil
}

func (d *demo) claim(ctx context.Context) (string, error) {
	class, why, err := d.class(ctx)
	if err != nil {
		return "", err
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: demoClaim},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(demoSize)},
			},
		},
	}
	if _, err := d.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim,
		metav1.CreateOptions{FieldManager: door.FieldManager}); err != nil {
		return "", err
	}
	return demoSize + " of " + why, nil
}

// class chooses the claim's class: the default one, if this process can expand its
// volumes while they are mounted, or else one with xfs. The expansion of mounted
// ext4 needs CAP_SYS_RESOURCE, which some containers and virtual machines withhold
// even from root.
func (d *demo) class(ctx context.Context) (name *string, why string, err error) {
	if mayGrowExt4() {
		return nil, "the default class", nil
	}
	c := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-xfs"}, Provisioner: volume.LocalDriver,
		Parameters:           map[string]string{"csi.storage.k8s.io/fstype": "xfs"},
		AllowVolumeExpansion: ptr.To(true), VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	if _, err := d.client.StorageV1().StorageClasses().Create(ctx, c,
		metav1.CreateOptions{FieldManager: door.FieldManager}); err != nil {
		return nil, "", err
	}
	return &c.Name, "class demo-xfs (ext4 would not grow online: CAP_SYS_RESOURCE is missing here)", nil
}

// mayGrowExt4 says whether this process, and so its children, has
// CAP_SYS_RESOURCE.
func mayGrowExt4() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return false
	}
	return caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// mount creates a Pod that uses the claim and waits until the claim is mounted.
// Without a node, the placement controller chooses one.
func (d *demo) mount(ctx context.Context, name, node string) (string, error) {
	pod := door.Pod(metav1.ObjectMeta{Namespace: "default", Name: name}, demoClaim, node)
	if _, err := d.client.CoreV1().Pods("default").Create(ctx, pod,
		metav1.CreateOptions{FieldManager: door.FieldManager}); err != nil {
		return "", err
	}
	err := kube.Follow(ctx, door.Pods(d.client, "default"), name, func(p *corev1.Pod) (bool, error) {
		if p == nil {
			return false, fmt.Errorf("pod %s was deleted by another user", name)
		}
		d.path = cluster.MountPaths(p)["data"]
		return door.Mounted(p), nil
	})
	if err != nil {
		return "", err
	}
	if !slices.Contains(mountsBelow(d.dir), d.path) {
		return "", fmt.Errorf("the node reports a mount at %q, but the mount table has none", d.path)
	}
	return "", nil
}

func (d *demo) write(context.Context) (string, error) {
	content := make([]byte, demoBytes)
	_, _ = rand.Read(content)
	sum := sha256.Sum256(content)
	d.sum = hex.EncodeToString(sum[:])
	file, err := os.OpenFile(filepath.Join(d.path, demoFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d MiB, sha256 %s...", demoBytes>>20, d.sum[:12]), file.Sync()
}

func (d *demo) unmount(ctx context.Context, name string) error {
	pod, err := d.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return kube.Unless(apierrors.IsNotFound(err), err)
	}
	return door.Unmount(ctx, d.client, pod)
}

// join starts a second node agent with the same pool, like another host with shared
// storage.
func (d *demo) join(ctx context.Context) (string, error) {
	invitation := exec.CommandContext(ctx, d.standalone, "invite", demoSecond, "--data-dir", d.data())
	identity, err := invitation.Output()
	if err != nil {
		return "", fmt.Errorf("invite %s: %w", demoSecond, err)
	}
	file := filepath.Join(d.dir, "node2.kubeconfig")
	if err := os.WriteFile(file, identity, 0o600); err != nil {
		return "", fmt.Errorf("write identity: %w", err)
	}
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	d.node, err = startAndWait(ctx, d.dir, "node2.log", own, "node", "--join", file, "--root-dir",
		filepath.Join(d.dir, "node2"), "--pool", d.pool())
	if err != nil {
		return "", err
	}
	ctx, cancel := d.node.with(ctx)
	defer cancel()
	nodes := d.client.StorageV1().CSINodes()
	err = kube.Follow(ctx, kube.Source[*storagev1.CSINode]{Get: nodes.Get, Watch: nodes.Watch}, demoSecond,
		func(n *storagev1.CSINode) (bool, error) {
			return n != nil && slices.ContainsFunc(n.Spec.Drivers, func(r storagev1.CSINodeDriver) bool {
				return r.Name == volume.LocalDriver
			}), nil
		})
	return "", err
}

func (d *demo) read(context.Context) (string, error) {
	content, err := os.ReadFile(filepath.Join(d.path, demoFile))
	if err != nil {
		return "", err
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != d.sum {
		return "", fmt.Errorf("the checksum differs from that of the written file")
	}
	return "the checksum is the same", nil
}

func (d *demo) grow(ctx context.Context) (string, error) {
	var err error
	if d.size, err = fileSystemSize(d.path); err != nil {
		return "", err
	}
	claims := d.client.CoreV1().PersistentVolumeClaims("default")
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, demoGrown)
	if _, err := claims.Patch(ctx, demoClaim, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: door.FieldManager}); err != nil {
		return "", err
	}
	want := resource.MustParse(demoGrown)
	err = kube.Follow(ctx, kube.Source[*corev1.PersistentVolumeClaim]{Get: claims.Get, Watch: claims.Watch}, demoClaim,
		func(c *corev1.PersistentVolumeClaim) (bool, error) {
			if c == nil {
				return false, fmt.Errorf("the claim was deleted by another user")
			}
			have := c.Status.Capacity[corev1.ResourceStorage]
			return have.Cmp(want) >= 0, nil
		})
	return demoSize + " to " + demoGrown, err
}

func (d *demo) checkGrown(context.Context) (string, error) {
	size, err := fileSystemSize(d.path)
	if err != nil {
		return "", err
	}
	if size < d.size+d.size/2 {
		return "", fmt.Errorf("the claim has %s, but the mounted filesystem was expanded only from %d to %d bytes",
			demoGrown, d.size, size)
	}
	return fmt.Sprintf("%d to %d MiB for files", d.size>>20, size>>20), nil
}

func fileSystemSize(path string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	return st.Blocks * uint64(st.Bsize), nil
}

func (d *demo) remove(ctx context.Context) (string, error) {
	for _, pod := range []string{"writer", "reader"} {
		if err := d.unmount(ctx, pod); err != nil {
			return "", err
		}
	}
	claims := d.client.CoreV1().PersistentVolumeClaims("default")
	claim, err := claims.Get(ctx, demoClaim, metav1.GetOptions{})
	if err != nil {
		return "", kube.Unless(apierrors.IsNotFound(err), err)
	}
	if err := claims.Delete(ctx, demoClaim, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return "", err
	}
	err = kube.Follow(ctx, kube.Source[*corev1.PersistentVolumeClaim]{Get: claims.Get, Watch: claims.Watch}, demoClaim,
		func(c *corev1.PersistentVolumeClaim) (bool, error) {
			return c == nil, nil
		})
	if err != nil || claim.Spec.VolumeName == "" {
		return "", err
	}
	volumes := d.client.CoreV1().PersistentVolumes()
	from := kube.Source[*corev1.PersistentVolume]{Get: volumes.Get, Watch: volumes.Watch}
	return "", kube.Follow(ctx, from, claim.Spec.VolumeName,
		func(v *corev1.PersistentVolume) (bool, error) {
			return v == nil, nil
		})
}
