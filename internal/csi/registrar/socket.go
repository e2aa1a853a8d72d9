package registrar

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"

	"volplane.dev/volplane/internal/process/socket"
)

// socketFile is a listening socket that recognizes its own file, so it does not mistake a socket that another process
// has created at the path for it.
type socketFile struct {
	*net.UnixListener
	path    string
	created fs.FileInfo
}

// listen creates the registration socket.
func listen(ctx context.Context, path string) (*socketFile, error) {
	l, err := socket.Listen(ctx, path)
	if errors.Is(err, socket.ErrTaken) {
		err = ErrTaken
	}
	if err != nil {
		return nil, err
	}
	// Close would remove whatever file is at the path by then.
	l.SetUnlinkOnClose(false)
	s := &socketFile{UnixListener: l, path: path}
	if s.created, err = os.Lstat(path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// RemoveStale removes the registration socket of a driver from a directory if no process listens at it, as after a kill
// of the process that created it: a node agent would keep trying it. It may be repeated.
func RemoveStale(ctx context.Context, dir, driver string) error {
	s := &socketFile{path: Path(dir, driver)}
	var err error
	if s.created, err = os.Lstat(s.path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", s.path)
	if err == nil {
		return c.Close()
	}
	if s.created.Mode().Type() == fs.ModeSocket && errors.Is(err, syscall.ECONNREFUSED) {
		s.remove()
	}
	return nil
}

// exists says whether the socket's file is still at its path. Another file at the path is ErrTaken.
func (s *socketFile) exists() (bool, error) {
	now, err := os.Lstat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	// The kernel reuses inode numbers, so the modification time is compared, too.
	case !os.SameFile(now, s.created) || !now.ModTime().Equal(s.created.ModTime()):
		return false, ErrTaken
	}
	return true, nil
}

// remove removes the socket's file unless it was replaced.
func (s *socketFile) remove() {
	if is, err := s.exists(); is && err == nil {
		_ = os.Remove(s.path)
	}
}
