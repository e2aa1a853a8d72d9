package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/test/internal/plane"
)

// ownVolumes is how many volumes the joined host has, and joinedRest the pause before its memory is measured.
const (
	ownVolumes = 10
	joinedRest = time.Minute
)

// measureJoined measures the memory of a host that joins a control plane with n claims of others, half of them
// attached, when it has some volumes of its own.
func measureJoined(ctx context.Context, figures map[string]any, n int) error {
	return withMany(ctx, n, func(p *plane.Plane, client kubernetes.Interface) (err error) {
		if err := each(n/2, func(name string) error { return attachOne(ctx, client, name) }); err != nil {
			return err
		}
		const node = "node2"
		agent, leave, err := joinHost(ctx, p, client, node, filepath.Join(filepath.Dir(p.Dir), node))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, leave()) }()
		var names []string
		for i := range ownVolumes {
			names = append(names, fmt.Sprint("own-", i))
			if err := createOn(ctx, client, names[i], node); err != nil {
				return err
			}
			if err := waitWritable(ctx, client, names[i]); err != nil {
				return fmt.Errorf("%s: %w", names[i], err)
			}
		}
		time.Sleep(joinedRest)
		u, err := readUsage(agent)
		if err != nil {
			return err
		}
		figures["joined_foreign_volumes"], figures["joined_own_volumes"] = n, ownVolumes
		figures["joined_rss_mib"] = float64(u.rssKiB) / 1024
		figures["joined_rss_anonymous_mib"] = float64(u.anonymousKiB) / 1024
		figures["joined_cpu_s"] = u.cpu.Seconds()
		return remove(ctx, client, names)
	})
}
