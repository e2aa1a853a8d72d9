package registrar

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"

	"volplane.dev/volplane/internal/socket"
)

// own is a socket that knows itself: what another process has put at its path
// is not taken for it.
type own struct {
	*net.UnixListener
	path string
	made fs.FileInfo
}

// announcement makes the socket of an announcement.
func announcement(ctx context.Context, path string) (*own, error) {
	l, err := socket.Listen(ctx, path)
	if errors.Is(err, socket.ErrTaken) {
		err = ErrTaken
	}
	if err != nil {
		return nil, err
	}
	// It would remove whatever is at the path by then.
	l.SetUnlinkOnClose(false)
	s := &own{UnixListener: l, path: path}
	if s.made, err = os.Lstat(path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// there says whether the socket is at its path still; another one there is
// ErrTaken.
func (s *own) there() (bool, error) {
	now, err := os.Lstat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	// The number of an inode that is free again is used again.
	case !os.SameFile(now, s.made) || !now.ModTime().Equal(s.made.ModTime()):
		return false, ErrTaken
	}
	return true, nil
}

// remove takes the socket away.
func (s *own) remove() {
	if is, err := s.there(); is && err == nil {
		_ = os.Remove(s.path)
	}
}
