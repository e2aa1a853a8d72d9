package flex

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/flex/doctor"
	"volplane.dev/volplane/internal/flex/install"
	"volplane.dev/volplane/internal/workshop/finding"
)

type doctorFlags struct {
	doctor.Doctor
	subject, dir     string
	options, secrets []string
	growTo, output   string
}

func doctorCommand(s *shell.Shell) *cobra.Command {
	var d doctorFlags
	c := &cobra.Command{
		Use:   "doctor NAME|FILE",
		Short: "Test a driver with real mounts",
		Long: `Test a driver with real mounts in a scratch directory, which is removed at the
end. The command calls the driver as hosts do, and also in ways that hosts
should not. Set the options that a volume of the driver needs. With --grow-to
the volume is also expanded, and keeps the new size.

A check fails if the driver does not work in some host, or loses data or a
secret; matters of form are warnings. The last lines say whether the driver
works in Kubernetes, and here.

Exit codes: 0 no check failed, 1 the driver could not be tested, 2 a check failed.`,
		Example: `  volplane flex doctor files/files
  volplane flex doctor example.com/lofs --option file=try --option size=400Mi --fstype xfs --grow-to 600Mi
  volplane flex doctor ./lofs -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeDriver(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			d.subject = args[0]
			return examine(cmd.Context(), s, d)
		},
	}
	f := c.Flags()
	f.StringVar(&d.dir, "dir", "", "plugin directory (default the one in use on this machine)")
	f.StringArrayVar(&d.options, "option", nil, "option of the volume, as KEY=VALUE; may be repeated")
	f.StringArrayVar(&d.secrets, "secret-file", nil, "value of the volume's Secret, as KEY=FILE; may be repeated")
	f.StringVar(&d.FSType, "fstype", "", "filesystem of the volume")
	f.StringVar(&d.growTo, "grow-to", "", "expand the volume to this size, such as 2Gi")
	f.StringVarP(&d.output, "output", "o", "", "output format: json or yaml")
	_ = c.MarkFlagDirname("dir")
	return c
}

// volume parses the flags that describe the volume.
func (d *doctorFlags) volume() (err error) {
	if d.Options, err = shell.Pairs("--option", d.options, shell.AsIs); err != nil {
		return err
	}
	if d.Secrets, err = shell.Pairs("--secret-file", d.secrets, shell.ReadSecret); err != nil {
		return err
	}
	if d.growTo != "" {
		size, err := doors.ParseSize(d.growTo)
		if err != nil {
			return fmt.Errorf("--grow-to: %w", err)
		}
		d.GrowTo = size.Value()
	}
	return nil
}

func examine(ctx context.Context, s *shell.Shell, d doctorFlags) error {
	if err := d.volume(); err != nil {
		return err
	}
	o := optionsOf(s, driverFlags{Options: install.Options{Dir: d.dir}})
	var err error
	if d.Path, d.Name, err = install.Locate(d.subject, o); err != nil {
		return err
	}
	diagnosis, err := d.Run(ctx)
	if err != nil && len(diagnosis.Findings) == 0 {
		return err
	}
	return s.PrintExam(d.output, diagnosis, func() error { return printDiagnosis(s, diagnosis) }, err,
		diagnosis.Level == finding.Fail)
}

func printDiagnosis(s *shell.Shell, d doctor.Report) error {
	if err := shell.PrintFindings(s.Out, d.Findings, "", true); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "\ndriver/%s: %s, %d checks by %d calls in %.1f s\n", d.Driver, d.Level, len(d.Findings), d.Calls,
		d.Seconds)
	if d.Works == nil {
		return nil
	}
	for _, in := range []struct {
		where string
		host  finding.Host
	}{{"in Kubernetes", decide.Kubernetes}, {"here (volplane)", decide.Volplane}} {
		verdict := "yes"
		if by := decide.BrokenBy(d.Findings, in.host); len(by) > 0 {
			verdict = "no (" + strings.Join(by, ", ") + ")"
		}
		if _, err := fmt.Fprintf(s.Out, "works %s: %s\n", in.where, verdict); err != nil {
			return err
		}
	}
	return nil
}
