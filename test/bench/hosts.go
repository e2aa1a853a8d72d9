package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/plane"
)

// diskHost is a node with a disk of its own, and how long claims took to be mounted there.
type diskHost struct {
	node, figure string
	took         []time.Duration
}

// measureHosts measures the time from the creation of a claim to a file in its mount, on the host of the control plane
// and on one that has joined: in one run and in turn, because both share the API server and the machine. Each host has
// a pool of its own, and the claims of the joined one are provisioned by its own controllers.
func measureHosts(ctx context.Context, figures map[string]any, claims int) (err error) {
	work, err := os.MkdirTemp("", "vp-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	p, err := plane.Start(ctx, filepath.Join(work, "one"))
	if err != nil {
		return err
	}
	defer p.Stop()
	client, err := p.Client()
	if err != nil {
		return err
	}
	hosts := []*diskHost{{node: "node1", figure: "control_plane"}, {node: "node2", figure: "joined"}}
	_, leave, err := joinHost(ctx, p, client, hosts[1].node, filepath.Join(work, "two"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	// The first claim of each shows that the host is ready, and does not count.
	for i := range claims + 1 {
		for _, h := range hosts {
			if err := h.mountOne(ctx, client, fmt.Sprintf("%s-%d", h.node, i)); err != nil {
				return err
			}
		}
		slices.Reverse(hosts)
	}
	medians := map[string]time.Duration{}
	for _, h := range hosts {
		took := slices.Sorted(slices.Values(h.took[1:]))
		medians[h.figure] = median(took)
		figures["host_mounted_ms_median_"+h.figure] = milliseconds(medians[h.figure])
		figures["host_mounted_ms_p95_"+h.figure] = milliseconds(took[len(took)*95/100])
	}
	figures["host_claims_each"] = claims
	figures["host_joined_times_control_plane"] = medians["joined"].Seconds() / medians["control_plane"].Seconds()
	return nil
}

// mountOne has a Pod on the host use a new claim, and removes both.
func (h *diskHost) mountOne(ctx context.Context, client kubernetes.Interface, name string) error {
	begin := time.Now()
	if err := createOn(ctx, client, name, h.node); err != nil {
		return err
	}
	if err := waitWritable(ctx, client, name); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	h.took = append(h.took, time.Since(begin))
	return remove(ctx, client, []string{name})
}

// joinHost runs the node agent of another host with the directory dir, and returns when the bundled driver is
// registered, with the agent's process id and what ends it.
func joinHost(
	ctx context.Context, p *plane.Plane, client kubernetes.Interface, node, dir string,
) (pid int, leave func() error, err error) {
	identity, err := exec.CommandContext(ctx, plane.Bin("volplaned"), "invite", node, "--data-dir", p.Dir).Output()
	if err != nil {
		return 0, nil, fmt.Errorf("invite %s: %w", node, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, nil, err
	}
	file := filepath.Join(dir, "joining.kubeconfig")
	if err := os.WriteFile(file, identity, 0o600); err != nil {
		return 0, nil, err
	}
	agent := exec.Command(plane.Bin("volplane"), "node", "--data-dir", dir, "--join", file)
	var log strings.Builder
	agent.Stderr = &log
	if err := agent.Start(); err != nil {
		return 0, nil, err
	}
	leave = func() error {
		_ = agent.Process.Signal(syscall.SIGTERM)
		if err := agent.Wait(); err != nil {
			return fmt.Errorf("node agent of %s: %w: %s", node, err, log.String())
		}
		return nil
	}
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			n, err := client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
			return err == nil && slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
				return d.Name == volume.LocalDriver
			}), nil
		})
	if err != nil {
		return 0, nil, errors.Join(fmt.Errorf("wait for %s: %w", node, err), leave())
	}
	return agent.Process.Pid, leave, nil
}
