// Command volplaned is the standalone control plane of volplane.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"k8s.io/klog/v2"
)

// version is set by the build.
var version = "dev"

// gcPercent trades some CPU time under load for a smaller process: most of the
// heap is caches that live long.
const gcPercent = 60

func main() {
	debug.SetGCPercent(gcPercent)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Whoever asks a second time does not want to wait for an orderly end.
	context.AfterFunc(ctx, stop)
	// The API server's library ends the process when it is stopped while it
	// starts: that is what was asked for.
	klog.OsExit = func(code int) {
		if ctx.Err() != nil {
			code = 0
		}
		os.Exit(code)
	}
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
