// Command kubectl-why_volume is the plugin of kubectl for `kubectl why-volume`, for any system that kubectl has. It is
// the command `volplane why`, without what needs Linux.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/cli/why"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := why.Plugin(ctx, os.Args[1:], shell.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, version)
	stop()
	os.Exit(code)
}
