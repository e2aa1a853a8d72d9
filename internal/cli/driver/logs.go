package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/kube"
)

// logFlags are the flags of 'driver logs'.
type logFlags struct {
	hostFlags
	follow, controller bool
	tail               int
}

func logsCommand(s *shell.Shell) *cobra.Command {
	var f logFlags
	c := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print what a CSI driver of this host has printed",
		Long: `Print what the process of a CSI driver has printed since the log became too long
last, and with --follow what it prints from now on. If the driver has a process
of its own for the controller service, --controller prints that one's log.`,
		Example: `  volplane driver logs csi.example.com --tail 20
  volplane driver logs csi.example.com --controller -f`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeHosted(s),
		RunE: func(cmd *cobra.Command, args []string) error { return printLogs(cmd.Context(), s, f, args[0]) },
	}
	f.register(c)
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "print what follows, until interrupted")
	c.Flags().BoolVar(&f.controller, "controller", false, "the process with the controller service")
	c.Flags().IntVar(&f.tail, "tail", -1, "how many lines to print at first; -1 for all")
	return c
}

func printLogs(ctx context.Context, s *shell.Shell, f logFlags, name string) error {
	h, err := driversOf(s, f.hostFlags)
	if err != nil {
		return err
	}
	d, err := h.get(name)
	if err != nil {
		return err
	}
	role := driverfile.RoleNode
	if f.controller {
		role = driverfile.RoleController
	}
	for _, p := range d.Processes {
		if !p.Has(role) {
			continue
		}
		if len(p.Exec) == 0 {
			return fmt.Errorf("another program runs the %s of driver %s, and keeps its log", role, name)
		}
		return h.logs(ctx, d.ProcessName(p), f)
	}
	return fmt.Errorf("driver %s has no process with the role %s", name, role)
}

// logs prints the log of a process.
func (h *hostDrivers) logs(ctx context.Context, name string, f logFlags) error {
	path := supervise.OutputPath(h.state, name)
	l := &logReader{path: path, out: h.out}
	defer l.close()
	err := l.open()
	if errors.Is(err, fs.ErrNotExist) && !f.follow {
		return fmt.Errorf("%s has printed nothing yet: see 'volplane driver list'", name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open log: %w", err)
	}
	if f.tail >= 0 && l.file != nil {
		if l.at, err = lastStart(l.file, f.tail); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
	if !f.follow {
		return l.copy()
	}
	err = onChange(ctx, h.state, func() (bool, error) {
		if err := l.open(); err != nil {
			return false, kube.Unless(errors.Is(err, fs.ErrNotExist), err)
		}
		return false, l.copy()
	})
	return kube.Unless(ctx.Err() != nil, err)
}

// logReader prints a log that grows, and that its supervisor cuts to nothing when it is too long.
type logReader struct {
	path string
	out  io.Writer
	file *os.File
	// at is how much was printed, in bytes.
	at int64
}

// open opens the log unless it is open.
func (l *logReader) open() error {
	if l.file != nil {
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	l.file = f
	return nil
}

func (l *logReader) close() {
	if l.file != nil {
		_ = l.file.Close()
	}
}

// copy prints what is new.
func (l *logReader) copy() error {
	info, err := l.file.Stat()
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	if info.Size() < l.at {
		l.at = 0
	}
	n, err := io.Copy(l.out, io.NewSectionReader(l.file, l.at, info.Size()-l.at))
	l.at += n
	return err
}

// lastStart returns where the last lines of a log begin.
func lastStart(f *os.File, lines int) (int64, error) {
	const block = 64 << 10
	info, err := f.Stat()
	if err != nil || lines == 0 {
		return info.Size(), err
	}
	end := info.Size()
	buffer := make([]byte, block)
	for last := end; end > 0; {
		from := max(0, end-block)
		part := buffer[:end-from]
		if _, err := f.ReadAt(part, from); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for {
			i := bytes.LastIndexByte(part, '\n')
			if i < 0 {
				break
			}
			// The newline at the very end belongs to the last line.
			if at := from + int64(i) + 1; at != last {
				if lines--; lines == 0 {
					return at, nil
				}
			}
			part = part[:i]
		}
		end = from
	}
	return 0, nil
}

// lastLogLines returns the last lines of the log of a process, without what a terminal could take for
// a command; nil if it cannot be read.
func lastLogLines(dir, name string, lines int) []string {
	l := &logReader{path: supervise.OutputPath(dir, name)}
	defer l.close()
	if l.open() != nil {
		return nil
	}
	at, err := lastStart(l.file, lines)
	if err != nil {
		return nil
	}
	const most = 16 << 10
	text, err := io.ReadAll(io.NewSectionReader(l.file, at, most))
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		out = append(out, shell.PlainLine(line))
	}
	return out
}
