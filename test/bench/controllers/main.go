// Command controllers runs volplane's controllers, except the one that needs nodes' heartbeats, beside one driver. The
// benchmark measures them apart from an API server: controllers KUBECONFIG SOCKET.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	var roles []string
	for _, d := range app.Declarations() {
		if d.Name != "nodelife" {
			roles = append(roles, d.Name)
		}
	}
	return app.Controllers(ctx, options.ControllersOptions{
		Config: config, Log: slog.New(slog.DiscardHandler),
		ControllersOptions: sidecar.ControllersOptions{Roles: roles, Socket: socket, Namespace: "default"},
	})
}
