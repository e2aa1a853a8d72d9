package cli_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"volplane": func() {
			streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
			os.Exit(cli.Main(context.Background(), os.Args[1:], streams, "v0.0.0-test", cli.Programs{
				Node:           func(context.Context, cli.NodeOptions) error { return nil },
				LocalDriver:    func(context.Context, cli.DriverOptions) error { return nil },
				NodeWithDriver: func(context.Context, cli.NodeOptions, cli.DriverOptions) error { return nil },
				Controller: func(_ context.Context, o app.ControllersOptions) error {
					_, err := fmt.Println("ran", o.Roles, o.Socket, "leases in", o.LeaseNamespace, o.Term.Duration, o.Term.Deadline, o.Term.Retry)
					return err
				},
			}))
		},
	})
}

// TestScripts plays what needs no API server.
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
