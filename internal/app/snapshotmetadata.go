package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar/snapshotmetadata"
)

// errNoMetadata says that a driver knows no changed blocks.
var errNoMetadata = errors.New("does not have the capability SNAPSHOT_METADATA_SERVICE")

// SnapshotMetadata waits for a driver, and serves the changed blocks of its snapshots to clients of the cluster until
// ctx ends. Metrics and health are served from the beginning. In a container, the kubelet is given the error, too.
func SnapshotMetadata(ctx context.Context, o options.SnapshotMetadataOptions) error {
	ready := &readiness{}
	return serveBeside(ctx, o.HTTP, o.Version, ready.checks()[:1], o.Log,
		func(ctx context.Context, metrics *observe.Registry) error {
			return snapshotMetadata(ctx, o, metrics, ready)
		})
}

// snapshotMetadata is SnapshotMetadata without a server of metrics.
func snapshotMetadata(
	ctx context.Context, o options.SnapshotMetadataOptions, metrics *observe.Registry, ready *readiness,
) error {
	secure, err := snapshotmetadata.TLS(o.SnapshotMetadataOptions, o.Log)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(kube.Restrict(o.Config, MetadataRole, snapshotmetadata.Rights()))
	if err != nil {
		return fmt.Errorf("client of snapshot-metadata: %w", err)
	}
	d, err := csi.Await(ctx, o.Socket, csi.LogNotReady(o.Log, o.Socket), csi.WithNodeOnly(),
		csi.WithControllerTimeout(o.Timeout), csi.WithMeter(metrics.Call), csi.WithCallLog(csi.NewCallLog(o.Log)))
	if err != nil {
		return lifecycle.UnlessEnded(ctx, err)
	}
	defer d.Close()
	if !d.Plugin.SnapshotMetadata {
		return fmt.Errorf("driver %s at %s %w", d.Name, o.Socket, errNoMetadata)
	}
	l, err := net.Listen("tcp", ":"+strconv.Itoa(o.Port))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	ready.driver.Store(true)
	o.Log.Info("changed blocks are served", "driver", d.Name, "address", l.Addr().String())
	drivers := csi.NewSet()
	drivers.Put(d)
	return snapshotmetadata.Serve(ctx, l, secure, snapshotmetadata.Options{
		Drivers: drivers, Driver: d.Name, Client: client, Audience: o.Audience, Limit: o.StreamLimit,
		Meter: metrics.Stream, Log: o.Log,
	})
}
