package install

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/flex/check"
)

// stage is a directory of its own in which a driver is checked before any host can see it. The
// executable has its final name there.
type stage struct {
	dir, exe string
}

// newStage creates a stage: beside the plugin directory if programs can be executed there, or else
// in the directory of temporary files. The caller has locked the plugin directory, so a stage that
// exists is of a killed installer, and is removed.
func newStage(c change) (*stage, error) {
	dir := c.directory.Path
	beside := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".volplane-stage")
	err := errors.Join(os.RemoveAll(beside), os.Mkdir(beside, 0o700))
	if err == nil {
		err = usable(beside, c)
	}
	if err == nil {
		return &stage{dir: beside, exe: filepath.Join(beside, c.name.Driver)}, nil
	}
	temporary, other := os.MkdirTemp("", "volplane-stage-")
	if other == nil {
		other = usable(temporary, c)
	}
	if other == nil {
		return &stage{dir: temporary, exe: filepath.Join(temporary, c.name.Driver)}, nil
	}
	return nil, fmt.Errorf("no place to try the driver in: %w", errors.Join(err, other))
}

// usable fails, and removes the stage, if the driver cannot be started there.
func usable(dir string, c change) error {
	if problem := Problem(dir); problem != "" && !c.NoInit {
		return errors.Join(errors.New(problem), os.Remove(dir))
	}
	return nil
}

func (s *stage) close() { _ = os.RemoveAll(s.dir) }

// fill copies the source to the stage, so that it cannot change between the checks and the
// installation. It returns the payload's directory, if there is one.
func (s *stage) fill(c change) (string, error) {
	info, err := os.Stat(c.Source)
	if err != nil {
		return "", fmt.Errorf("find driver: %w", err)
	}
	if info.IsDir() {
		return s.fillPayload(c)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("find driver: %s is a %s", c.Source, kind(info))
	}
	return "", copyFile(c.Source, s.exe, 0o700)
}

// copyFile copies a regular file to a new one with a mode.
func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.OpenFile(from, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("copy driver: %w", err)
	}
	defer in.Close()
	return writeFile(to, in, mode)
}

// writeFile writes a new file with a mode. No process has it open for writing when this returns.
func writeFile(to string, content io.Reader, mode os.FileMode) error {
	return withoutForks(func() error {
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return fmt.Errorf("copy driver: %w", err)
		}
		n, err := io.Copy(out, io.LimitReader(content, check.MaxSize+1))
		if err == nil && n > check.MaxSize {
			err = fmt.Errorf("it has more than %d bytes", int64(check.MaxSize))
		}
		if err == nil {
			err = out.Chmod(mode)
		}
		if err == nil {
			err = out.Sync()
		}
		if err = errors.Join(err, out.Close()); err != nil {
			return fmt.Errorf("copy driver: %w", err)
		}
		return nil
	})
}
