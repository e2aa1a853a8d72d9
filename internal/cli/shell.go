package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/sidecar"
)

// Exit codes of the program.
const (
	exitOK      = 0
	exitError   = 1
	exitProblem = 2
)

// Streams are the program's input and outputs.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// shell holds what all commands of one call share.
type shell struct {
	Streams
	programs Programs
	version  string
	flags    flags
	// reach has clients with a configuration connect to another control plane if theirs does not answer; nil if they
	// should not.
	reach func(*rest.Config)
	// planted prints which faults are planted on this host; nil where no driver runs.
	planted func(context.Context)
	// ending says that the program was asked to stop.
	ending func() bool
}

func newShell(ctx context.Context, s Streams, version string, p Programs) *shell {
	s.Out = asWideAs(s.Out)
	return &shell{Streams: s, programs: p, version: version, ending: func() bool { return ctx.Err() != nil }}
}

// execute runs a command with arguments, says what has failed, and returns the exit code.
func (s *shell) execute(ctx context.Context, c *cobra.Command, args []string) int {
	c.SetArgs(args)
	c.SetIn(s.In)
	c.SetOut(s.Out)
	c.SetErr(s.Err)
	return s.exitCode(c.ExecuteContext(ctx))
}

// tellPlanted prints which faults are planted on this host, so that users do not look for a cause elsewhere.
func (s *shell) tellPlanted(ctx context.Context) {
	if s.planted != nil {
		s.planted(ctx)
	}
}

// errProblem ends a command that has found a problem and printed it.
var errProblem = errors.New("problem found")

// codeError is an error with an exit code of its own.
type codeError struct {
	code int
	text string
}

func (e *codeError) Error() string { return e.text }

// exitCode returns the exit code of a command, and says what has failed.
func (s *shell) exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errProblem):
		return exitProblem
	}
	var coded *codeError
	if errors.As(err, &coded) {
		fmt.Fprintln(s.Err, "error:", coded)
		return coded.code
	}
	fmt.Fprintln(s.Err, "error:", s.explain(err))
	return exitError
}

// log returns the program's log and makes the libraries use it.
func (s *shell) log() *slog.Logger {
	return program.NewLog(s.Err, s.flags.logFormat, s.flags.verbosity, s.ending)
}

// quiet has libraries log only if -v enables it: they log errors that they also return.
func (s *shell) quiet(*cobra.Command, []string) error {
	if klog.SetLogger(logr.Discard()); s.flags.verbosity > 0 {
		s.log()
	}
	return sidecar.CheckLogFormat(s.flags.logFormat)
}

// verbosityByLetter lets --v be --verbosity, which is how Kubernetes' programs have it.
func verbosityByLetter(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "v" {
		name = "verbosity"
	}
	return pflag.NormalizedName(name)
}

// write prints a text, unless making it has failed.
func (s *shell) write(text []byte, err error) error {
	if err == nil {
		_, err = s.Out.Write(text)
	}
	return err
}
