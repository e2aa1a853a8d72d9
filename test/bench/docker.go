package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"volplane.dev/volplane/internal/csi/trace"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/plane"
)

// Use Debian's docker: the PATH may have another program with that name.
const docker, dockerd = "/usr/bin/docker", "/usr/sbin/dockerd"

// measureDocker runs a container n times with a local volume of docker's and with one of volplane's, in turn. The time
// of the driver's calls is subtracted, and is a separate figure.
func measureDocker(ctx context.Context, figures map[string]any, n int) error {
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join("/run/docker/plugins", filepath.Base(dir)+".sock")
	p, err := plane.Start(ctx, filepath.Join(dir, "plane"), "--docker="+socket)
	if err != nil {
		return err
	}
	defer func() { p.Stop(); _ = os.Remove(socket) }()
	e := engine{dir: dir}
	if err := e.start(ctx); err != nil {
		return err
	}
	defer e.stop()
	for name, driver := range map[string]string{"local": "local", "volplane": filepath.Base(dir)} {
		if _, err := e.docker(ctx, "volume", "create", "-d", driver, name); err != nil {
			return err
		}
		// The first run fills the volume, and volplane creates it.
		if _, err := e.run(ctx, name); err != nil {
			return err
		}
	}
	return e.measure(ctx, figures, p, n)
}

func (e *engine) measure(ctx context.Context, figures map[string]any, p *plane.Plane, n int) error {
	var local, ours, driver, more []time.Duration
	for range n {
		l, err := e.run(ctx, "local")
		if err != nil {
			return err
		}
		began := time.Now()
		v, err := e.run(ctx, "volplane")
		if err != nil {
			return err
		}
		// The calls that unmount the volume are made while docker continues.
		calls, err := driverTime(ctx, p, began, "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume")
		if err != nil {
			return err
		}
		local, ours, driver, more = append(local, l), append(ours, v), append(driver, calls), append(more, v-calls-l)
	}
	for name, times := range map[string][]time.Duration{
		"local": local, "volplane": ours, "driver": driver, "more_than_local": more,
	} {
		figures["docker_run_ms_"+name] = milliseconds(median(times))
	}
	return nil
}

// driverTime returns the total time of the bundled driver's calls that began after a time and were made one after the
// other: those of these methods, or all.
func driverTime(ctx context.Context, p *plane.Plane, since time.Time, methods ...string) (time.Duration, error) {
	var all time.Duration
	traced := trace.Client{Socket: trace.Socket(filepath.Join(p.Dir, "node"))}
	err := traced.Calls(ctx, volume.LocalDriver, false, func(e trace.Entry) error {
		if e.Time.After(since) && (len(methods) == 0 || slices.Contains(methods, path.Base(e.Method))) {
			all += time.Duration(e.Seconds * float64(time.Second))
		}
		return nil
	})
	return all, err
}

// engine is a dockerd of the benchmark's own.
type engine struct {
	dir     string
	process *plane.Process
}

func (e *engine) start(ctx context.Context) (err error) {
	at := func(name string) string { return filepath.Join(e.dir, name) }
	if e.process, err = plane.Run(at("dockerd.log"), dockerd, "--data-root", at("docker"), "--exec-root", at("exec"),
		"--pidfile", at("dockerd.pid"), "-H", "unix://"+at("docker.sock"), "--iptables=false", "--ip6tables=false",
		"--bridge=none", "--ip-forward=false"); err != nil {
		return err
	}
	if err = e.ready(ctx); err == nil {
		err = e.image(ctx)
	}
	if err != nil {
		e.stop()
	}
	return err
}

func (e *engine) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := e.docker(ctx, "info")
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// image builds the image of the containers from Debian's static busybox.
func (e *engine) image(ctx context.Context) error {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	header := &tar.Header{Name: "bin/busybox", Mode: 0o755, Size: int64(len(busybox))}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	if _, err := archive.Write(busybox); err != nil {
		return err
	}
	file := filepath.Join(e.dir, "image.tar")
	if err := errors.Join(archive.Close(), os.WriteFile(file, b.Bytes(), 0o600)); err != nil {
		return err
	}
	_, err = e.docker(ctx, "import", file, "bench")
	return err
}

func (e *engine) docker(ctx context.Context, args ...string) (string, error) {
	return output(ctx, docker, append([]string{"-H", "unix://" + filepath.Join(e.dir, "docker.sock")}, args...)...)
}

// run runs a container with a volume, and returns how long that took. The volume is free again for the next run.
func (e *engine) run(ctx context.Context, volume string) (time.Duration, error) {
	return timed(func() error {
		_, err := e.docker(ctx, "run", "--rm", "--init=false", "--network", "none", "-v", volume+":/data", "bench",
			"/bin/busybox", "true")
		return err
	})
}

// stop stops docker, and unmounts its own directories that it leaves mounted.
func (e *engine) stop() {
	e.process.Stop()
	table, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(table), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], e.dir+"/") &&
			!strings.HasPrefix(f[4], filepath.Join(e.dir, "plane")) {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}
