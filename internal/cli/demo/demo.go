//go:build linux

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/explain/chain"
)

// Limits of the demo.
const (
	stepTime    = 90 * time.Second
	cleanupTime = 30 * time.Second
)

// Verb runs a command of this program without output.
type Verb func(ctx context.Context, args ...string) error

// Command returns the command 'demo', which plays a user of the other ones.
func Command(s *shell.Shell, verb Verb) *cobra.Command {
	var keep bool
	var output string
	c := &cobra.Command{
		Use:   "demo",
		Short: "Demonstrate the life of a volume, in a temporary directory",
		Long: `Demonstrate the whole life of a volume in a temporary directory: start a control
plane, claim a volume, mount it, write a file, mount it on a second node, read
the file, expand the volume while it is mounted, delete everything, and check
that nothing is left. The demo needs root for mounting; it changes nothing
outside its directory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), s, verb, keep, output) },
	}
	c.Flags().BoolVar(&keep, "keep", false, "keep the directory")
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return c
}

// result is the JSON output of the demo.
type result struct {
	OK           bool     `json:"ok"`
	Error        string   `json:"error,omitempty"`
	Directory    string   `json:"directory,omitempty"`
	Milliseconds int64    `json:"milliseconds"`
	Steps        []timing `json:"steps"`
}

type timing struct {
	Name         string `json:"name"`
	Milliseconds int64  `json:"milliseconds"`
	Detail       string `json:"detail,omitempty"`
}

// demo is one run of the demo: its directory, processes and state.
type demo struct {
	verb        Verb
	dir         string
	standalone  string
	plane, node *process
	client      kubernetes.Interface
	// sum is the checksum of the file that was written to the volume.
	sum string
	// size is the size of the filesystem before its expansion, in bytes.
	size int64
}

func run(ctx context.Context, s *shell.Shell, verb Verb, keep bool, output string) error {
	d, err := newDemo(verb)
	if err != nil {
		return err
	}
	out := s.Out
	if output != "" {
		out = io.Discard
	}
	begin := time.Now()
	r := result{Directory: d.dir}
	err = d.play(ctx, out, &r)
	interrupted := ctx.Err() != nil
	if err != nil && !interrupted {
		d.printFailure(ctx, s.Err)
	}
	left := d.cleanUp(context.WithoutCancel(ctx), interrupted)
	if kept := keep || left != nil || err != nil && !interrupted; !kept {
		left, r.Directory = os.RemoveAll(d.dir), ""
	}
	if err = errors.Join(err, left); err != nil {
		r.Error = err.Error()
	}
	r.OK, r.Milliseconds = err == nil, time.Since(begin).Milliseconds()
	fmt.Fprintf(out, "%7d ms  total\n", r.Milliseconds)
	if r.Directory != "" {
		fmt.Fprintln(out, "kept", d.dir)
	}
	_, unprinted := s.PrintStructured(output, r)
	return errors.Join(err, unprinted)
}

func newDemo(verb Verb) (*demo, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("the demo mounts filesystems: run it as root")
	}
	program, err := shell.FindStandalone()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "volplane-demo-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("find directory: %w", err)
	}
	return &demo{verb: verb, dir: dir, standalone: program}, nil
}

// play runs the steps until one fails or ctx ends.
func (d *demo) play(ctx context.Context, out io.Writer, r *result) error {
	for _, step := range d.steps() {
		begin := time.Now()
		limited, cancel := context.WithTimeout(ctx, stepTime)
		detail, err := step.run(limited)
		cancel()
		took := time.Since(begin).Milliseconds()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			fmt.Fprintf(out, "%7d ms  FAILED: %s\n", took, step.name)
			return fmt.Errorf("%s: %w", step.name, err)
		}
		r.Steps = append(r.Steps, timing{step.name, took, detail})
		fmt.Fprintf(out, "%7d ms  %s\n", took, strings.TrimSuffix(step.name+": "+detail, ": "))
	}
	return nil
}

// printFailure prints what is known about a failure, before anything is undone.
func (d *demo) printFailure(ctx context.Context, out io.Writer) {
	if d.client != nil {
		ctx, cancel := context.WithTimeout(ctx, cleanupTime)
		defer cancel()
		if told, found := shell.Facts(d.client).Chain(ctx, "pvc", "default", claimName); found {
			fmt.Fprintln(out)
			_ = chain.Render(out, told, nil)
		}
	}
	for _, name := range []string{"plane.log", "node2.log"} {
		data, err := os.ReadFile(filepath.Join(d.dir, name))
		if err != nil || len(data) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
		fmt.Fprintf(out, "\nthe last lines of %s:\n%s\n", filepath.Join(d.dir, name),
			strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
	fmt.Fprintln(out)
}
