package driver

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// output is one of a child's output streams.
//
// It is a pipe of which the child holds both ends. A daemon that keeps the pipe after this process
// has closed it is then its own reader: a write does not raise SIGPIPE and, since the daemon's end
// is non-blocking by then, fails at worst (H6).
type output struct {
	reader, child *os.File
	kept          tail
	ended         chan struct{}
}

func newOutput() (*output, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	o := &output{reader: os.NewFile(uintptr(ends[0]), "pipe"), ended: make(chan struct{})}
	both, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", ends[0]), unix.O_RDWR|unix.O_CLOEXEC, 0)
	_ = unix.Close(ends[1])
	if err != nil {
		_ = o.reader.Close()
		return nil, fmt.Errorf("open a pipe: %w", err)
	}
	o.child = os.NewFile(uintptr(both), "pipe")
	return o, nil
}

// read copies the output until finish.
func (o *output) read() {
	defer close(o.ended)
	// The copy ends by the deadline that finish sets: this process holds the other end, so there is
	// no end of file.
	_, _ = io.Copy(&o.kept, o.reader)
}

// finish ends read and takes what is in the pipe. It does not wait for processes that still have
// the pipe open.
func (o *output) finish() {
	_ = unix.SetNonblock(int(o.child.Fd()), true)
	_ = o.reader.SetReadDeadline(time.Unix(1, 0))
	<-o.ended
	b := make([]byte, 64<<10)
	// A process may go on writing; at most one pipe's capacity can have been written before the end
	// of the call.
	for range decide.MaxOutput / len(b) {
		n, err := unix.Read(int(o.child.Fd()), b)
		if err != nil || n <= 0 {
			break
		}
		_, _ = o.kept.Write(b[:n])
	}
	o.close()
}

func (o *output) close() {
	_ = o.reader.Close()
	_ = o.child.Close()
}

// tail keeps the last decide.MaxOutput bytes that are written to it.
type tail struct {
	b []byte
	// cut says that earlier bytes were dropped.
	cut bool
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2*decide.MaxOutput {
		t.b = append(t.b[:0], t.last()...)
	}
	return len(p), nil
}

func (t *tail) last() []byte {
	if len(t.b) > decide.MaxOutput {
		t.cut = true
		return t.b[len(t.b)-decide.MaxOutput:]
	}
	return t.b
}
