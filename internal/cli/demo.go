//go:build linux

package cli

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

	"volplane.dev/volplane/internal/explain/chain"
)

// Limits of the demo.
const (
	stepTime    = 90 * time.Second
	cleanupTime = 30 * time.Second
)

type demoOptions struct {
	keep   bool
	output string
	steps  string
}

func (s *shell) demoCommand() *cobra.Command {
	var o demoOptions
	c := &cobra.Command{
		Use:   "demo",
		Short: "Demonstrate the life of a volume, in a temporary directory",
		Long: `Demonstrate the whole life of a volume in a temporary directory: start a control
plane, claim a volume, mount it, write a file, mount it on a second node, read
the file, expand the volume while it is mounted, delete everything, and check
that nothing is left. The demo needs root for mounting; it changes nothing
outside its directory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.demo(cmd.Context(), o) },
	}
	f := c.Flags()
	f.BoolVar(&o.keep, "keep", false, "keep the directory")
	f.StringVarP(&o.output, "output", "o", "", "output format: json or yaml")
	f.StringVar(&o.steps, "steps-to", "", "append the name of each step to this file when the step starts")
	_ = f.MarkHidden("steps-to")
	return c
}

// demoStep is one step of the demo. Its function run returns details to print.
type demoStep struct {
	name string
	run  func(ctx context.Context) (string, error)
}

// demoResult is the JSON output of the demo.
type demoResult struct {
	OK           bool         `json:"ok"`
	Error        string       `json:"error,omitempty"`
	Directory    string       `json:"directory,omitempty"`
	Milliseconds int64        `json:"milliseconds"`
	Steps        []demoTiming `json:"steps"`
}

type demoTiming struct {
	Name         string `json:"name"`
	Milliseconds int64  `json:"milliseconds"`
	Detail       string `json:"detail,omitempty"`
}

// demo is one run of the demo: its directory, processes and state.
type demo struct {
	dir         string
	standalone  string
	plane, node *process
	client      kubernetes.Interface
	// path is the path at which the volume is mounted.
	path string
	// sum is the checksum of the file that was written there.
	sum string
	// size is the size of the filesystem before its expansion, in bytes.
	size uint64
}

func (s *shell) demo(ctx context.Context, o demoOptions) error {
	if err := knownOutput(o.output, "json", "yaml"); err != nil {
		return err
	}
	d, err := newDemo()
	if err != nil {
		return err
	}
	stepLog, err := stepsWriter(o.steps)
	if err != nil {
		return err
	}
	defer stepLog.Close()
	out := s.Out
	if o.output != "" {
		out = io.Discard
	}
	begin := time.Now()
	result := demoResult{Directory: d.dir}
	err = d.play(ctx, out, stepLog, &result)
	if err != nil && ctx.Err() == nil {
		s.printDemoFailure(ctx, d)
	}
	kept, err := d.end(ctx, o.keep, err)
	if !kept {
		result.Directory = ""
	}
	if err != nil {
		result.Error = err.Error()
	}
	result.OK, result.Milliseconds = err == nil, time.Since(begin).Milliseconds()
	fmt.Fprintf(out, "%7d ms  total\n", result.Milliseconds)
	if kept {
		fmt.Fprintln(out, "kept", d.dir)
	}
	return errors.Join(err, s.printDemoResult(result, o.output))
}

func (s *shell) printDemoResult(result demoResult, output string) error {
	if output == "" {
		return nil
	}
	return s.printValue(result, output)
}

// end undoes the run and removes the directory, unless keep is set or the run
// failed. It returns whether the directory still exists, and all errors.
func (d *demo) end(ctx context.Context, keep bool, failed error) (bool, error) {
	interrupted := ctx.Err() != nil
	left := d.cleanUp(context.WithoutCancel(ctx), interrupted)
	if keep || left != nil || failed != nil && !interrupted {
		return true, errors.Join(failed, left)
	}
	return false, errors.Join(failed, os.RemoveAll(d.dir))
}

func newDemo() (*demo, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("the demo mounts file systems: run it as root")
	}
	program, err := findStandalone()
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
	return &demo{dir: dir, standalone: program}, nil
}

func stepsWriter(path string) (io.WriteCloser, error) {
	if path == "" {
		path = os.DevNull
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open list of steps: %w", err)
	}
	return f, nil
}

// play runs the steps until one fails or ctx ends, and writes the name of each to
// stepLog.
func (d *demo) play(ctx context.Context, out, stepLog io.Writer, result *demoResult) error {
	for _, step := range d.steps() {
		fmt.Fprintln(stepLog, step.name)
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
		result.Steps = append(result.Steps, demoTiming{step.name, took, detail})
		fmt.Fprintf(out, "%7d ms  %s\n", took, strings.TrimSuffix(step.name+": "+detail, ": "))
	}
	return nil
}

// printDemoFailure prints what is known about a failure, before anything is undone.
func (s *shell) printDemoFailure(ctx context.Context, d *demo) {
	if d.client != nil {
		ctx, cancel := context.WithTimeout(ctx, cleanupTime)
		defer cancel()
		if told, found := newFacts(d.client).Chain(ctx, "pvc", "default", demoClaim); found {
			fmt.Fprintln(s.Err)
			_ = chain.Render(s.Err, told, nil)
		}
	}
	for _, name := range []string{"plane.log", "node2.log"} {
		data, err := os.ReadFile(filepath.Join(d.dir, name))
		if err != nil || len(data) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
		fmt.Fprintf(s.Err, "\nthe last lines of %s:\n%s\n", filepath.Join(d.dir, name),
			strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
	fmt.Fprintln(s.Err)
}
