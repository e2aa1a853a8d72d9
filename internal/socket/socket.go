package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
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
