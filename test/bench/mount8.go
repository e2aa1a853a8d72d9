package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/test/internal/plane"
)

// measureMount8 mounts and unmounts one volume n times with the helpers of mount(8). The time of the driver's calls is
// subtracted, and is a separate figure.
func measureMount8(ctx context.Context, figures map[string]any, n int) error {
	dir, err := os.MkdirTemp("", "volplane-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := plane.Start(ctx, filepath.Join(dir, "plane"))
	if err != nil {
		return err
	}
	defer p.Stop()
	client, err := p.Client()
	if err != nil {
		return err
	}
	claim := plane.Claim("data", "64Mi")
	if _, err := client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return err
	}
	m := mount8{p: p, dir: filepath.Join(dir, "data"), programs: filepath.Join(dir, "programs")}
	for _, d := range []string{m.dir, m.programs} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	for _, name := range []string{"mount.volplane", "umount.volplane"} {
		if err := os.Symlink(plane.Bin("volplane"), filepath.Join(m.programs, name)); err != nil {
			return err
		}
	}
	return m.measure(ctx, figures, n)
}

// mount8 is a host on which one claim is mounted.
type mount8 struct {
	p             *plane.Plane
	dir, programs string
}

func (m mount8) measure(ctx context.Context, figures map[string]any, n int) error {
	// The first mount also creates the volume.
	if _, err := m.run(ctx, "mount.volplane", "data", m.dir); err != nil {
		return err
	}
	if _, err := m.run(ctx, "umount.volplane", m.dir); err != nil {
		return err
	}
	times := map[string][]time.Duration{}
	for range n {
		for _, step := range [][]string{
			{"mount", "mount.volplane", "data", m.dir},
			{"again", "mount.volplane", "data", m.dir},
			{"umount", "umount.volplane", m.dir},
		} {
			began := time.Now()
			took, err := m.run(ctx, step[1:]...)
			if err != nil {
				return err
			}
			calls, err := driverTime(ctx, m.p, began)
			if err != nil {
				return err
			}
			times[step[0]] = append(times[step[0]], took-calls)
			times[step[0]+"_driver"] = append(times[step[0]+"_driver"], calls)
		}
	}
	for what, took := range times {
		figures["mount8_"+what+"_ms"] = milliseconds(median(took))
	}
	return nil
}

// run runs a program, and returns how long it took.
func (m mount8) run(ctx context.Context, args ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(m.programs, args[0]), args[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+m.p.Kubeconfig())
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return time.Since(began), nil
}
