// Command controllers runs volplane's controllers, all but the one that needs
// nodes' heartbeats, beside one driver, for the benchmark to measure them apart
// from an API server: controllers KUBECONFIG SOCKET.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
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
	// This and FreeOSMemory is what `volplane controller` does.
	debug.SetGCPercent(50)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	conn, err := csi.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	drivers := csi.NewSet()
	drivers.Put(conn)
	var roles []string
	for _, d := range app.Declarations() {
		if d.Name != "nodelife" {
			roles = append(roles, d.Name)
		}
	}
	return app.ControlPlane(ctx, app.ControlPlaneOptions{
		ConfigFor: func(string) (*rest.Config, error) { return rest.CopyConfig(config), nil },
		Roles:     roles, Drivers: drivers, Log: slog.New(slog.DiscardHandler),
	}, debug.FreeOSMemory)
}
