package supervise

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/redact"
)

const (
	// keptOutput is how many bytes of output a log has before its end moves to the older one, and how many that keeps.
	keptOutput = 4 << 20
	// outputPause is the least time between two checks of the log of a program that prints without end: what it
	// prints in between takes space, too.
	outputPause = 100 * time.Millisecond
)

// OutputPath returns the path of the log of a program, beside which the previous one is kept.
func OutputPath(dir, name string) string { return filepath.Join(dir, name+".log") }

// olderOutput returns the path of what a log had before.
func olderOutput(path string) string { return path + ".1" }

// openOutput opens the log of a program, which the program writes by itself: so nothing is lost while it is
// not supervised.
func openOutput(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
}

// trimOutput keeps the log of a program small until ctx ends. It sleeps while the program prints nothing.
func trimOutput(ctx context.Context, w *watch, path string, most int64, failed func(error)) {
	defer w.close()
	var told error
	for ctx.Err() == nil {
		err := look(w, path, most)
		if err != nil && told == nil {
			failed(err)
		}
		told = err
		_ = w.next(ctx) // whatever ends the wait, the log is checked again
		lifecycle.Sleep(ctx, outputPause)
	}
}

// look trims a log, which it creates if needed, and has its next change watched.
func look(w *watch, path string, most int64) error {
	f, err := openOutput(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w.set(unix.IN_MODIFY|unix.IN_ONESHOT, path)
	return trim(f, most)
}

// trim moves the end of a log that has grown too large to the older one. What the program prints between the copy and
// the cut is lost.
func trim(f *os.File, most int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	// A program that has opened its output again writes after a hole: only what takes space counts.
	const block = 512
	if st.Size <= most || st.Blocks*block <= most {
		return nil
	}
	from := max(0, st.Size-most)
	err := copyOutput(io.NewSectionReader(f, from, st.Size-from), olderOutput(f.Name()))
	// The log must not fill the disk because there is no space for a copy.
	return errors.Join(err, f.Truncate(0))
}

func copyOutput(from io.Reader, path string) error {
	draft := path + durable.Draft
	to, err := os.OpenFile(draft, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(draft))
	}
	return nil
}

// lastLine returns the last line of a log, or of the older one if that has none.
func lastLine(path string, hide *redact.Secrets) string {
	for _, path := range []string{path, olderOutput(path)} {
		if end, err := tail(path); err == nil {
			if line := lastOf(end, hide); line != "" {
				return line
			}
		}
	}
	return ""
}

func tail(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, st.Size()-redact.MaxText)
	return io.ReadAll(io.NewSectionReader(f, from, redact.MaxText))
}

// lastOf returns the last line of a text that is not empty: its end, without secrets and without what a terminal could
// take for a command.
func lastOf(text []byte, hide *redact.Secrets) string {
	const most = 300
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	line := strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, hide.Hide(lines[len(lines)-1]))
	line = strings.TrimSpace(line)
	if len(line) > most {
		line = "..." + strings.ToValidUTF8(line[len(line)-most:], "")
	}
	return line
}
