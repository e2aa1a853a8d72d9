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

// Draft ends the name of a file that is being written. What a crash leaves of
// one means nothing; the next write of the same file takes its place.
const Draft = ".tmp"

// WriteFile replaces a file, which only its owner may read. After a crash at any
// moment either the old or the new content is there; when it returns without an
// error, the new one is. Writes of the same file must not overlap.
func WriteFile(path string, data []byte) error { return disk{}.writeFile(path, data) }

// disk is what writes; before, if any, is asked before each step, and its error is the step's: tests let a disk fail,
// and a process end, wherever they can.
type disk struct{ before func(step, path string) error }

func (d disk) do(step, path string, deed func(string) error) error {
	if d.before != nil {
		if err := d.before(step, path); err != nil {
			return err
		}
	}
	return deed(path)
}

func (d disk) writeFile(path string, data []byte) error {
	err := d.writeDraft(path+Draft, data)
	if err == nil {
		err = d.rename(path+Draft, path)
	}
	if err != nil {
		// Half a file is in the way of others.
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
	return d.do("remove", path, func(path string) error { return gone(os.Remove(path)) })
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

// ReadFile reads a plain file that WriteFile has written, at most so many bytes
// of it. It follows no link and waits for nobody.
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

// Remove deletes a file for good; one that is not there is no error.
func Remove(path string) error {
	if err := gone(os.Remove(path)); err != nil {
		return err
	}
	// Also of one that is not there: the last removal may not be on the disk.
	return gone(Sync(filepath.Dir(path)))
}

// gone forgives that a file is not there.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Sync waits until what a file or directory is now is on the disk.
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
