package registrar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// nameLimit is what the kernel takes as the name of a unix socket.
const nameLimit = 107

// socket is one that knows itself: what another process has put at its path
// is not taken for it.
type socket struct {
	*net.UnixListener
	path string
	own  fs.FileInfo
}

// listen makes a socket that only its owner may use, in the place of one that
// nobody answers at any more.
func listen(ctx context.Context, path string) (*socket, error) {
	if len(path) > nameLimit {
		return nil, fmt.Errorf("the name of the socket has %d bytes, %d are possible", len(path), nameLimit)
	}
	if other, err := (&net.Dialer{}).DialContext(ctx, "unix", path); err == nil {
		return nil, errors.Join(ErrTaken, other.Close())
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// It would remove whatever is at the path by then.
	l.SetUnlinkOnClose(false)
	s := &socket{UnixListener: l, path: path}
	if s.own, err = os.Lstat(path); err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// there says whether the socket is at its path still; another one there is
// ErrTaken.
func (s *socket) there() (bool, error) {
	now, err := os.Lstat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	// The number of an inode that is free again is used again.
	case !os.SameFile(now, s.own) || !now.ModTime().Equal(s.own.ModTime()):
		return false, ErrTaken
	}
	return true, nil
}

// remove takes the socket away.
func (s *socket) remove() {
	if is, err := s.there(); is && err == nil {
		_ = os.Remove(s.path)
	}
}
