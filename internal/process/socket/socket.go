package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// NameLimit is what the kernel takes as the name of a unix socket.
const NameLimit = 107

// ErrTaken says that another process already answers at a path.
var ErrTaken = errors.New("another one answers")

// Listen makes a socket that only its owner may use, in the place of one that a killed process left. The directory is
// made if need be.
func Listen(ctx context.Context, path string) (*net.UnixListener, error) {
	if len(path) > NameLimit {
		return nil, fmt.Errorf("the socket %s has a name of %d bytes, %d are possible; give a shorter directory", path,
			len(path), NameLimit)
	}
	if other, err := (&net.Dialer{}).DialContext(ctx, "unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("%w at %s; stop it first", ErrTaken, path), other.Close())
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("make socket: %w", err), l.Close())
	}
	return l, nil
}

// firstInherited is the descriptor of the first socket that systemd hands over.
const firstInherited = 3

// Inherited returns the socket that systemd has made under a name (FileDescriptorName=) and handed over to this
// process; nil if there is none. The socket's file stays when it is closed, since it is systemd's.
func Inherited(name string) (net.Listener, error) {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	at := slices.Index(strings.Split(os.Getenv("LISTEN_FDNAMES"), ":"), name)
	if err != nil || at < 0 || at >= n {
		return nil, nil
	}
	fd := firstInherited + at
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("socket %s of systemd: %w", name, err)
	}
	return l, nil
}
