// Command volplane manages the claims, volumes and mounts of a volplane control
// plane, and runs its node agent and bundled driver.
package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/supervise"
)

// version is set by the build.
var version = "dev"

func main() {
	if slices.Equal(os.Args[1:], []string{program.GateVerb}) {
		os.Exit(supervise.Gate())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	code := cli.Main(ctx, os.Args[1:], streams, version, programs())
	stop()
	os.Exit(code)
}
