// Command volplane-node-sidecars stands beside a CSI driver on its node: it takes the place of
// csi-node-driver-registrar and of livenessprobe, by whose names it may be started, or of both in one process.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"volplane.dev/volplane/internal/sidecar/nodesidecar"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := nodesidecar.Main(ctx, os.Args, nodesidecar.Streams{Out: os.Stdout, Err: os.Stderr}, version)
	stop()
	os.Exit(code)
}
