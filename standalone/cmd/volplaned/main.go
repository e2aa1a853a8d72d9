// Command volplaned is the standalone control plane of volplane.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"k8s.io/klog/v2"

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
	defer stop()
	// A second signal ends the process immediately.
	context.AfterFunc(ctx, stop)
	// The API server's library exits with an error if it is stopped during its start. An exit that was requested is not an
	// error.
	klog.OsExit = func(code int) {
		if ctx.Err() != nil {
			code = 0
		}
		os.Exit(code)
	}
	// gRPC warns of each member of a store that does not answer, which the commands say themselves; up has a log.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
