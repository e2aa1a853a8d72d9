package shell

import (
	"cmp"
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

	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
)

// Exit codes of the program.
const (
	ExitOK      = 0
	ExitError   = 1
	ExitProblem = 2
)

// Streams are the program's input and outputs.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Shell holds what all commands of one call share.
type Shell struct {
	Streams
	Programs Programs
	Version  string
	Flags    Flags
	// Reach has clients with a configuration connect to another control plane if theirs does not answer; nil if they
	// should not.
	Reach func(*rest.Config)
	// Planted prints which faults are planted on this host; nil where no driver runs.
	Planted func(context.Context)
	// ending says that the program was asked to stop.
	ending func() bool
}

// New returns the shell of a call of the program. If the streams have the output of a terminal, it is as wide.
func New(ctx context.Context, s Streams, version string, p Programs) *Shell {
	s.Out = asWideAs(s.Out)
	return &Shell{Streams: s, Programs: p, Version: version, ending: func() bool { return ctx.Err() != nil }}
}

// Execute runs a command with arguments, says what has failed, and returns the exit code.
func (s *Shell) Execute(ctx context.Context, c *cobra.Command, args []string) int {
	c.SetArgs(args)
	c.SetIn(s.In)
	c.SetOut(s.Out)
	c.SetErr(s.Err)
	return s.exitCode(c.ExecuteContext(ctx))
}

// PrintPlanted prints which faults are planted on this host, so that users do not look for a cause elsewhere.
func (s *Shell) PrintPlanted(ctx context.Context) {
	if s.Planted != nil {
		s.Planted(ctx)
	}
}

// ErrProblem ends a command that has found a problem and printed it.
var ErrProblem = errors.New("problem found")

// CodeError is an error with an exit code of its own.
type CodeError struct {
	Code int
	Text string
}

func (e *CodeError) Error() string { return e.Text }

// exitCode returns the exit code of a command, and says what has failed.
func (s *Shell) exitCode(err error) int {
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrProblem):
		return ExitProblem
	}
	var coded *CodeError
	if errors.As(err, &coded) {
		fmt.Fprintln(s.Err, "error:", coded)
		return coded.Code
	}
	fmt.Fprintln(s.Err, "error:", s.Explain(err))
	return ExitError
}

// Log returns the program's log and makes the libraries use it.
func (s *Shell) Log() *slog.Logger {
	return options.NewLog(s.Err, s.Flags.LogFormat, s.Flags.Verbosity, s.ending)
}

// Begin is what each command does first: it has libraries log only if -v enables it, because they log errors that they
// also return, and refuses formats that are not known.
func (s *Shell) Begin(c *cobra.Command, _ []string) error {
	if klog.SetLogger(logr.Discard()); s.Flags.Verbosity > 0 {
		s.Log()
	}
	return cmp.Or(sidecar.CheckLogFormat(s.Flags.LogFormat), knownOutput(c))
}

// VerbosityByLetter lets --v be --verbosity, which is how Kubernetes' programs have it.
func VerbosityByLetter(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "v" {
		name = "verbosity"
	}
	return pflag.NormalizedName(name)
}
