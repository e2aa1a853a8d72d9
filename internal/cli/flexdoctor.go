//go:build linux

package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/door"
	"volplane.dev/volplane/internal/flex"
)

// maxSecretFile limits the size of a secret, which becomes part of an argument.
const maxSecretFile = 1 << 20

type doctorFlags struct {
	flex.Exam
	options, secrets []string
	growTo, output   string
}

func (s *shell) flexDoctorCommand() *cobra.Command {
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
		ValidArgsFunction: s.completeDriver,
		RunE: func(cmd *cobra.Command, args []string) error {
			d.Subject = args[0]
			return s.flexDoctor(cmd.Context(), d)
		},
	}
	f := c.Flags()
	f.StringVar(&d.Dir, "dir", "", "plugin directory (default the one in use on this machine)")
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
	if d.Options, err = pairs("--option", d.options, asIs); err != nil {
		return err
	}
	if d.Secrets, err = pairs("--secret-file", d.secrets, readSecret); err != nil {
		return err
	}
	if d.growTo != "" {
		size, err := door.ParseSize(d.growTo)
		if err != nil {
			return fmt.Errorf("--grow-to: %w", err)
		}
		d.GrowTo = size.Value()
	}
	return nil
}

func (s *shell) flexDoctor(ctx context.Context, d doctorFlags) error {
	if err := knownOutput(d.output, "json", "yaml"); err != nil {
		return err
	}
	if err := d.volume(); err != nil {
		return err
	}
	o := s.flexOptions(flexFlags{})
	d.DataDir, d.Named = o.DataDir, o.Named
	diagnosis, err := flex.Examine(ctx, d.Exam)
	if err != nil && len(diagnosis.Findings) == 0 {
		return err
	}
	return s.printExam(d.output, diagnosis, func() error { return s.printDiagnosis(diagnosis) }, err,
		diagnosis.Level == decide.Fail)
}

// printExam prints the report of an examination, which err has ended before its end if it is not nil, and returns how
// the command ends.
func (s *shell) printExam(output string, report any, show func() error, err error, failed bool) error {
	printed, problem := s.printStructured(output, report)
	if !printed {
		problem = show()
	}
	if err = cmp.Or(err, problem); err == nil && failed {
		return errProblem
	}
	return err
}

// asIs is the value of a pair as it was typed.
func asIs(value string) (string, error) { return value, nil }

// pairs reads KEY=VALUE arguments of a flag.
func pairs(flag string, all []string, read func(string) (string, error)) (map[string]string, error) {
	out := map[string]string{}
	for _, one := range all {
		key, value, found := strings.Cut(one, "=")
		if !found || key == "" {
			return nil, fmt.Errorf("%s: want KEY=VALUE", flag)
		}
		value, err := read(value)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", flag, key, err)
		}
		out[key] = value
	}
	return out, nil
}

func readSecret(path string) (string, error) {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxSecretFile) {
		err = fmt.Errorf("%s is not a regular file of at most 1 MiB", path)
	}
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(path)
	return string(data), err
}

func (s *shell) printDiagnosis(d flex.Diagnosis) error {
	if err := printFindings(s.Out, d.Findings, "", true); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "\ndriver/%s: %s, %d checks by %d calls in %.1f s\n", d.Driver, d.Level, len(d.Findings), d.Calls,
		d.Seconds)
	if d.Works == nil {
		return nil
	}
	for _, in := range []struct {
		where string
		host  decide.Host
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
