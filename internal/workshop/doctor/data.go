package doctor

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
)

// dataSize is how much is written to a volume.
const dataSize = 2 << 20

// errWaits says that a filesystem does not answer.
var errWaits = errors.New("the filesystem does not answer")

// dataOf returns data that follows from a word.
func dataOf(word string) []byte {
	sum := sha256.Sum256([]byte(word))
	return bytes.Repeat(sum[:], dataSize/len(sum))
}

// bounded runs f, which may wait for a filesystem without a server.
func (x *exam) bounded(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	limit := time.NewTimer(x.Patience)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return errWaits
	}
}

// open opens a file in the scratch directory. It follows no link: the driver says what is in a volume.
func open(path string, how *unix.OpenHow) (*os.File, error) {
	how.Flags |= unix.O_CLOEXEC
	how.Resolve = unix.RESOLVE_NO_SYMLINKS
	fd, err := unix.Openat2(unix.AT_FDCWD, path, how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// exists says whether there is anything at a path, also if that does not answer.
func (x *exam) exists(path string) bool {
	return x.bounded(func() error {
		_, err := os.Lstat(path)
		return err
	}) == nil || mounts(path) > 0
}

// sizeOf returns the size of the filesystem at a path.
func (x *exam) sizeOf(path string) (size int64, err error) {
	sizes := make(chan int64, 1)
	err = x.bounded(func() error {
		u, err := mount.Stat(path)
		sizes <- u.Total
		return err
	})
	if err == nil {
		size = <-sizes
	}
	return size, err
}

// place returns the path of the data at a target: a file, or the device itself.
func (v *vol) place(target string) string {
	if v.capability.GetBlock() != nil {
		return target
	}
	return filepath.Join(target, "volplane-doctor")
}

// write writes the data of a word to the volume at a path, and syncs it.
func (v *vol) write(target, word string) error {
	return v.x.bounded(func() error {
		how := &unix.OpenHow{Flags: unix.O_WRONLY}
		if v.capability.GetBlock() == nil {
			how.Flags, how.Mode = unix.O_WRONLY|unix.O_CREAT, 0o600
		}
		f, err := open(v.place(target), how)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(dataOf(word), 0)
		return errors.Join(err, f.Sync(), f.Close())
	})
}

// holds returns an error unless the volume at a path has the data of a word.
func (v *vol) holds(target, word string) error {
	return v.x.bounded(func() error {
		f, err := open(v.place(target), &unix.OpenHow{Flags: unix.O_RDONLY})
		if err != nil {
			return err
		}
		defer f.Close()
		got := make([]byte, dataSize)
		if _, err := io.ReadFull(f, got); err != nil {
			return fmt.Errorf("read what was written: %w", err)
		}
		if !bytes.Equal(got, dataOf(word)) {
			return errors.New("what is read is not what was written")
		}
		return nil
	})
}
