// Command volplane manages the claims, volumes and mounts of a volplane control
// plane, and runs its node agent and bundled driver.
package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/process/options"
)

// version is set by the build.
var version = "dev"

func main() {
	if slices.Equal(os.Args[1:], []string{options.GateVerb}) {
		os.Exit(supervise.Gate())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// A later signal ends the process immediately. The parent, such as sudo, may repeat the first.
	context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, stop) })
	streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	code := cli.Run(ctx, os.Args, streams, version, programs())
	stop()
	os.Exit(code)
}
