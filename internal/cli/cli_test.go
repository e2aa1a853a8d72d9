package cli_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/cli/why"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		why.PluginProgram: func() {
			streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
			os.Exit(cli.Run(context.Background(), os.Args, streams, "v0.0.0-test", cli.Programs{}))
		},
		"csi-sidecars": func() {
			streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
			os.Exit(cli.Run(context.Background(), os.Args, streams, "v0.0.0-test",
				cli.Programs{Controllers: ranControllers, DriverControllers: app.ClusterControllers()}))
		},
		"volplane": func() {
			streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
			code := cli.Main(ctx, os.Args[1:], streams, "v0.0.0-test", cli.Programs{
				Node: func(
					_ context.Context, _ options.NodeOptions, bridge *flex.BridgeOptions, driver *options.DriverOptions,
				) error {
					if bridge == nil || driver != nil {
						return nil
					}
					_, err := fmt.Println("ran", bridge.PluginDir, bridge.RootDir, bridge.SocketDir, bridge.ConfigFile)
					return err
				},
				LocalDriver: func(context.Context, options.DriverOptions) error { return nil },
				Controllers: ranControllers,
				Bridge: func(_ context.Context, o flex.BridgeOptions) error {
					_, err := fmt.Println("ran", o.Node, o.PluginDir, o.RootDir, o.SocketDir, o.RegistryDir, o.ConfigFile)
					return err
				},
				DriverControllers: app.ClusterControllers(),
				Rights:            app.DriverControllerRights,
				Pool:              app.PoolRecords,
				Registrar: func(_ context.Context, o sidecar.RegistrarOptions) error {
					_, err := fmt.Printf("ran %s %q %s\n", o.Socket, o.Endpoint, o.Dir)
					return err
				},
			})
			stop()
			os.Exit(code)
		},
	})
}

// ranControllers prints the options of the controllers.
func ranControllers(_ context.Context, o options.ControllersOptions) error {
	fmt.Println("ran", o.Roles, o.Socket, "leases", o.Elects, "in", o.Namespace, o.Term.Duration, o.Term.Deadline,
		o.Term.Retry)
	_, err := fmt.Println("sync", o.ReconcileSync, "capacity", o.CapacityPoll, "workers", o.Provisioner.Workers,
		o.Attacher.Workers, o.Resizer.Workers, "timeouts", o.Provisioner.Timeout, o.Attacher.Timeout, o.Resizer.Timeout,
		o.Resizer.ModifyTimeout)
	return err
}

// TestScripts runs the scripts that need no API server.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("VOLPLANE_DATA_DIR", e.WorkDir+"/data")
			e.Setenv("KUBECONFIG", "")
			return nil
		},
	})
}
