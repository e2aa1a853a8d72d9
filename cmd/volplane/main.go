// Command volplane manages the claims, volumes and mounts of a volplane control
// plane, and runs its node agent and bundled driver.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"volplane.dev/volplane/internal/cli"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	code := cli.Main(ctx, os.Args[1:], streams, version, programs())
	stop()
	os.Exit(code)
}
