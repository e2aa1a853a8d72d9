package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/workshop/doctor"
	"volplane.dev/volplane/internal/workshop/finding"
	"volplane.dev/volplane/internal/workshop/starter"
)

type doctorFlags struct {
	doctor.Doctor
	parameters, secrets []string
	size, output        string
}

func doctorCommand(s *shell.Shell) *cobra.Command {
	var d doctorFlags
	c := &cobra.Command{
		Use:   "doctor --exec COMMAND | --socket PATH",
		Short: "Test a CSI driver with real mounts",
		Long: `Test a CSI driver with real mounts in a scratch directory, which is removed at
the end. The command calls the driver as clusters do, and also in ways that they
should not. It deletes the volumes that it has made, and no others.

With --exec, the driver is started, and also killed in the middle of calls. The
driver must listen at the address in $(CSI_ENDPOINT), which is replaced in the
command and set in its environment; $(NODE_NAME) is the name of this host, and
$(SCRATCH) the scratch directory. COMMAND is split into words as a shell does,
but no shell is run. A driver that chooses its socket itself needs --socket, too.

Exit codes: 0 no check failed, 1 the driver could not be tested, 2 a check failed.`,
		Example: `  volplane driver doctor --exec './mydriver --endpoint $(CSI_ENDPOINT) --node $(NODE_NAME)'
  volplane driver doctor --socket /run/mydriver/csi.sock --parameter type=ssd --fstype xfs
  volplane driver doctor --exec './mydriver node' --controller-exec './mydriver controller' -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return examine(cmd.Context(), s, d) },
	}
	f := c.Flags()
	f.StringVar(&d.Exec, "exec", "", "command that starts the driver")
	f.StringVar(&d.Socket, "socket", "", "socket of the driver (default the one in $(CSI_ENDPOINT))")
	f.StringVar(&d.ControllerExec, "controller-exec", "", "command that starts the controller, if that is another process")
	f.StringVar(&d.ControllerSocket, "controller-socket", "", "socket of the controller, if that is another process")
	f.StringArrayVar(&d.Env, "env", nil, "environment variable of the driver, as NAME=VALUE; may be repeated")
	f.StringArrayVar(&d.parameters, "parameter", nil, "parameter of the volumes, as KEY=VALUE; may be repeated")
	f.StringArrayVar(&d.secrets, "secret-file", nil, "value of the volumes' Secret, as KEY=FILE; may be repeated")
	f.StringVar(&d.FSType, "fstype", "", "filesystem of the volumes")
	f.StringVar(&d.size, "size", "",
		"size of a volume, such as 1Gi; one is expanded to twice its size (default 64Mi, 320Mi for xfs and btrfs)")
	f.StringVar(&d.Scratch, "scratch-dir", "",
		"directory in which the scratch directory is created, which the driver must see (default /var/lib)")
	f.StringVarP(&d.output, "output", "o", "", "output format: json or yaml")
	f.StringSliceVar(&d.Only, "only", nil, "names of the checks to run, as in the findings (default all)")
	_ = c.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(doctor.Checks(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// volume parses the flags that describe the volumes.
func (d *doctorFlags) volume() (err error) {
	if d.Parameters, err = shell.Pairs("--parameter", d.parameters, shell.AsIs); err != nil {
		return err
	}
	if d.Secrets, err = shell.Pairs("--secret-file", d.secrets, shell.ReadSecret); err != nil {
		return err
	}
	if _, err = shell.Pairs("--env", d.Env, shell.AsIs); err != nil {
		return err
	}
	for _, check := range d.Only {
		if !slices.Contains(doctor.Checks(), check) {
			return fmt.Errorf("--only: unknown check %q: use %s", check, strings.Join(doctor.Checks(), ", "))
		}
	}
	if d.size != "" {
		size, err := doors.ParseSize(d.size)
		if err != nil {
			return fmt.Errorf("--size: %w", err)
		}
		d.Size = size.Value()
	}
	return nil
}

func examine(ctx context.Context, s *shell.Shell, d doctorFlags) error {
	if err := d.volume(); err != nil {
		return err
	}
	d.Progress = progress(s)
	report, err := d.Run(ctx)
	if err != nil && len(report.Findings) == 0 {
		return err
	}
	return s.PrintExam(d.output, report, func() error { return printDriverReport(s, report) }, err,
		report.Level == finding.Fail)
}

// progress returns a function that prints the current check, once the first seconds are over, and at most once in as
// many seconds.
func progress(s *shell.Shell) func(check string) {
	const quiet = 2 * time.Second
	begun := time.Now()
	last := begun
	return func(check string) {
		if now := time.Now(); now.Sub(last) > quiet {
			last = now
			fmt.Fprintf(s.Err, "%3.0f s: %s\n", now.Sub(begun).Seconds(), check)
		}
	}
}

func printDriverReport(s *shell.Shell, r doctor.Report) error {
	if err := shell.PrintFindings(s.Out, r.Findings, "", true); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.Out, "\ndriver/%s: %s, %d checks by %d calls in %.1f s\n", r.Driver, r.Level, len(r.Findings),
		r.Calls, r.Seconds)
	return err
}

func initCommand(s *shell.Shell) *cobra.Command {
	c := s.InitCommand(starter.Languages(), starter.Write)
	c.Short = "Write a CSI driver to start from, and its test"
	c.Long = `Write a working CSI driver into a directory, with its test, its file for a host
and a README. Change the driver so that it mounts your storage, and test it with
'sh test.sh', which also runs 'volplane driver doctor'.

The volumes of the driver are directories of the host. A driver in Go needs
modules of gRPC and CSI, one in Python the packages grpcio and protobuf.`
	c.Example = `  volplane driver init files.example.com
  volplane driver init files.example.com --language python --dir driver`
	return c
}
