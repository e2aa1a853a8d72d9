package plane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Leftovers names everything of volumes that exists: objects, files in the
// pool, mounts below dir, loop devices over files below dir. After all claims
// and Pods have gone it must be empty.
func (p *Plane) Leftovers(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	left, err := objects(ctx, client)
	if err != nil {
		return nil, err
	}
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

func objects(ctx context.Context, client kubernetes.Interface) ([]string, error) {
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
	return left, nil
}

// Mounts names the mounts below the plane's directory.
func (p *Plane) Mounts() ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], p.Dir+"/") {
			out = append(out, "mount "+f[4])
		}
	}
	return out, nil
}

// Loops names the loop devices over files below the plane's directory.
func (p *Plane) Loops() []string {
	var out []string
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, b := range backing {
		if data, err := os.ReadFile(b); err == nil && strings.HasPrefix(string(data), p.Dir+"/") {
			out = append(out, "loop device "+b[len("/sys/block/"):len(b)-len("/loop/backing_file")])
		}
	}
	return out
}
