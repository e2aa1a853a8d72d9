package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"volplane.dev/volplane/test/internal/plane"
)

// besidePause is the pause between two questions of a kubelet here.
const besidePause = 100 * time.Millisecond

// besideProgram is a program that runs beside a driver on its node.
type besideProgram struct {
	figure, path string
	args         []string
	// asked are the addresses that answer whether the driver lives.
	asked []string
}

// measureBeside measures the memory of the programs beside a driver on a node, after n requests.
func measureBeside(ctx context.Context, figures map[string]any, n int) error {
	d, stop, err := serveDriver(0)
	if err != nil {
		return err
	}
	defer stop()
	registry, err := os.MkdirTemp("", "registry-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(registry)
	a, b, err := freeAddresses()
	if err != nil {
		return err
	}
	ours, socket := plane.Bin("volplane-node-sidecars"), "--node-driver-registrar-kubelet-registration-path="+d.socket
	all := []besideProgram{
		{"registrar_rss_mib", ours, []string{
			"--controllers=node-driver-registrar", "--csi-address=" + d.socket, "--node-driver-registrar-http-endpoint=" + a,
			"--node-driver-registrar-plugin-registration-path=" + registry, socket,
		}, []string{a}},
		{"liveness_rss_mib", ours, []string{
			"--controllers=livenessprobe", "--csi-address=" + d.socket, "--livenessprobe-http-endpoint=" + b,
		}, []string{b}},
		{"both_rss_mib", ours, []string{
			"--controllers=node-driver-registrar,livenessprobe", "--csi-address=" + d.socket,
			"--node-driver-registrar-http-endpoint=" + a, "--livenessprobe-http-endpoint=" + b,
			"--node-driver-registrar-plugin-registration-path=" + registry, socket,
		}, []string{a, b}},
	}
	if dir := os.Getenv("UPSTREAM"); dir != "" {
		registrar := filepath.Join(dir, "csi-node-driver-registrar")
		all = append(all, besideProgram{"upstream_registrar_rss_mib", registrar, []string{
			"--csi-address=" + d.socket, "--http-endpoint=" + a, "--plugin-registration-path=" + registry,
			"--kubelet-registration-path=" + d.socket,
		}, []string{a}}, besideProgram{"upstream_liveness_rss_mib", filepath.Join(dir, "livenessprobe"), []string{
			"--csi-address=" + d.socket, "--http-endpoint=" + b,
		}, []string{b}})
	}
	for _, p := range all {
		if figures[p.figure], err = p.memory(ctx, n); err != nil {
			return fmt.Errorf("%s: %w", p.figure, err)
		}
	}
	return nil
}

func freeAddresses() (a, b string, err error) {
	for _, to := range []*string{&a, &b} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer l.Close()
		*to = l.Addr().String()
	}
	return a, b, nil
}

// memory returns the memory of the program, in MiB, after n requests.
func (p besideProgram) memory(ctx context.Context, n int) (float64, error) {
	c := exec.CommandContext(ctx, p.path, p.args...)
	if err := c.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	for _, address := range p.asked {
		if err := wait.PollUntilContextCancel(ctx, besidePause, true, func(context.Context) (bool, error) {
			return lives(address), nil
		}); err != nil {
			return 0, err
		}
	}
	for range n {
		<-time.After(besidePause)
		for _, address := range p.asked {
			if !lives(address) {
				return 0, fmt.Errorf("%s does not answer", address)
			}
		}
	}
	u, err := readUsage(c.Process.Pid)
	return float64(u.rssKiB) / 1024, err
}

func lives(address string) bool {
	r, err := http.Get("http://" + address + "/healthz")
	if err != nil {
		return false
	}
	defer r.Body.Close()
	_, _ = io.Copy(io.Discard, r.Body)
	return r.StatusCode == http.StatusOK
}
