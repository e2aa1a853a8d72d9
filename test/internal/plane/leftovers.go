package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Leftovers names everything of volumes that exists: objects, files in the pool, mounts below dir, loop devices over
// files below dir. After all claims and Pods are deleted, it must be empty.
func (p *Plane) Leftovers(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	left, err := Objects(ctx, client)
	if err != nil {
		return nil, err
	}
	there, err := p.OnHost()
	return append(left, there...), err
}

// OnHost names files in the pool, mounts below dir, and loop devices over files below dir.
func (p *Plane) OnHost() ([]string, error) {
	var left []string
	for _, kind := range []string{"volumes", "snapshots"} {
		files, err := os.ReadDir(filepath.Join(p.Pool(), kind))
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		for _, f := range files {
			left = append(left, "pool "+kind+"/"+f.Name())
		}
	}
	mounts, err := p.Mounts()
	return append(append(left, mounts...), p.Loops()...), err
}

// Objects names the objects of volumes and their users.
func Objects(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	var left []string
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range pods.Items {
		left = append(left, fmt.Sprintf("pod %s (deletion %v)", o.Name, o.DeletionTimestamp))
	}
	claims, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range claims.Items {
		left = append(left, fmt.Sprintf("claim %s %v", o.Name, o.Finalizers))
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range volumes.Items {
		left = append(left, fmt.Sprintf("volume %s %s %v", o.Name, o.Status.Phase, o.Finalizers))
	}
	attachments, err := client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range attachments.Items {
		left = append(left, fmt.Sprintf("attachment %s to %s %v", o.Name, o.Spec.NodeName, o.Finalizers))
	}
	shots, err := snapshots(ctx, client)
	return append(left, shots...), err
}

// snapshots names those and their contents.
func snapshots(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	var left []string
	for _, kind := range []string{"volumesnapshots", "volumesnapshotcontents"} {
		raw, err := client.Discovery().RESTClient().Get().AbsPath("/apis/snapshot.storage.k8s.io/v1/" + kind).DoRaw(ctx)
		if apierrors.IsNotFound(err) {
			continue // the server has just started, and none has existed yet
		}
		if err != nil {
			return nil, err
		}
		var list metav1.PartialObjectMetadataList
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, err
		}
		for _, o := range list.Items {
			left = append(left, fmt.Sprintf("%s %s %v", kind, o.Name, o.Finalizers))
		}
	}
	return left, nil
}

// Mounts names the mounts below the plane's directory.
func (p *Plane) Mounts() ([]string, error) {
	points, err := mountsBelow(p.Dir)
	for i := range points {
		points[i] = "mount " + points[i]
	}
	return points, err
}

func mountsBelow(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			out = append(out, f[4])
		}
	}
	return out, nil
}

// Loops names the loop devices over files below the plane's directory.
func (p *Plane) Loops() []string {
	loops := loopsBelow(p.Dir)
	for i := range loops {
		loops[i] = "loop device " + loops[i]
	}
	return loops
}

func loopsBelow(dir string) []string {
	var out []string
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, b := range backing {
		if data, err := os.ReadFile(b); err == nil && strings.HasPrefix(string(data), dir+"/") {
			out = append(out, b[len("/sys/block/"):len(b)-len("/loop/backing_file")])
		}
	}
	return out
}

// UnmountBelow removes what a killed process has left below a directory: its mounts, the last first, and its loop
// devices.
func UnmountBelow(dir string) error {
	points, err := mountsBelow(dir)
	for _, point := range slices.Backward(points) {
		if failed := unix.Unmount(point, 0); failed != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", point, failed))
		}
	}
	for _, loop := range loopsBelow(dir) {
		out, failed := exec.Command("losetup", "-d", "/dev/"+loop).CombinedOutput()
		// It may have disappeared on its own, a moment after its mount.
		if _, there := os.Stat("/sys/block/" + loop + "/loop"); failed != nil && there == nil {
			err = errors.Join(err, fmt.Errorf("detach %s: %w: %s", loop, failed, out))
		}
	}
	return err
}
