package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Draft is the suffix of a file that is being written. A draft that a crash has left is
// meaningless; the next write of the same file replaces it.
const Draft = ".tmp"

// WriteFile replaces a file; only its owner may read it. After a crash at any moment the file has
// either the old or the new content; after a return without an error it has the new one. Writes of
// the same file must not overlap. It may be repeated.
func WriteFile(path string, data []byte) error { return disk{}.writeFile(path, data) }

// disk writes files. before, if set, is called before each step, and its error is that of the step:
// tests simulate errors of the disk and the end of the process with it.
type disk struct{ before func(step, path string) error }

func (d disk) do(step, path string, f func(string) error) error {
	if d.before != nil {
		if err := d.before(step, path); err != nil {
			return err
		}
	}
	return f(path)
}

func (d disk) writeFile(path string, data []byte) error {
	err := d.writeDraft(path+Draft, data)
	if err == nil {
		err = d.rename(path+Draft, path)
	}
	if err != nil {
		// An incomplete draft takes space that others may need.
		return errors.Join(fmt.Errorf("write %s: %w", path, err), d.remove(path+Draft))
	}
	return d.sync(filepath.Dir(path))
}

func (d disk) writeDraft(path string, data []byte) error {
	return d.do("write", path, func(path string) error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		if err == nil {
			err = d.do("sync", path, func(string) error { return f.Sync() })
		}
		return errors.Join(err, f.Close())
	})
}

func (d disk) rename(from, to string) error {
	return d.do("rename", to, func(to string) error { return os.Rename(from, to) })
}

func (d disk) remove(path string) error {
	return d.do("remove", path, func(path string) error { return ignoreNotExist(os.Remove(path)) })
}

func (d disk) sync(path string) error { return d.do("sync", path, Sync) }

// WriteJSON is WriteFile with a value.
func WriteJSON(path string, from any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return WriteFile(path, data)
}

// ReadFile reads at most so many bytes of a regular file that WriteFile has written. It follows no
// symbolic link and does not block.
func ReadFile(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// ReadJSON is ReadFile into a value.
func ReadJSON(path string, most int64, into any) error {
	data, err := ReadFile(path, most)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// Remove deletes a file durably. It may be repeated.
func Remove(path string) error {
	if err := ignoreNotExist(os.Remove(path)); err != nil {
		return err
	}
	// This is also done if there was no file: an earlier removal may not be on the disk yet.
	return ignoreNotExist(Sync(filepath.Dir(path)))
}

// ignoreNotExist returns err, or nil if err says that the file does not exist.
func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Sync waits until the content of a file or directory is on the disk. It may be repeated.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
