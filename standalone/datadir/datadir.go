package datadir

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
)

// Format is the version of the directory's layout that this program writes. It
// reads all older versions.
const Format = 1

// minFree is the free space that a start needs: etcd preallocates 64 MiB.
const minFree = 128 << 20

// Reserve is the name of the file that reserves space for a start on a full disk.
const Reserve = "reserve"

// Record is the name of the file with the position that etcd has reached.
const Record = "reached"

// Reasons why a data directory is refused.
var (
	ErrInUse = errors.New("data directory in use")
	ErrNewer = errors.New("data directory of a newer version")
	ErrOpen  = errors.New("data directory open to others")
	ErrLink  = errors.New("data directory with a link")
	ErrFull  = errors.New("data directory full")
)

// Dir is an open data directory.
type Dir struct {
	// Path is absolute.
	Path string
	lock *os.File
}

// Open creates the directory if it does not exist and locks it for this process until
// Close or the end of the process.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := reached(path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w; choose another one with --data-dir, or start as root", err)
	}
	if err := private(path); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w; choose another one with --data-dir, or start as root", err)
	}
	d := &Dir{Path: path, lock: lock}
	if err := d.take(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return d, nil
}

// ID returns the id of the directory during this boot of the host. It is the same for each process that holds the
// directory, one at a time; a copy of the directory, for example on a clone of the host, has another id.
func (d *Dir) ID() (string, error) {
	boot, err := durable.Boot()
	if err != nil {
		return "", err
	}
	var s unix.Stat_t
	if err := unix.Fstat(int(d.lock.Fd()), &s); err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	sum := sha256.Sum256(fmt.Append(nil, boot, s.Dev, s.Ino))
	return hex.EncodeToString(sum[:8]), nil
}

func (d *Dir) take() error {
	err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("lock data directory %s: %w; choose one on a local filesystem with --data-dir", d.Path, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %s is held by %s; stop it, or choose another directory with --data-dir", ErrInUse,
			d.Path, d.holder())
	}
	if err := d.checkFormat(); err != nil {
		return err
	}
	if err := d.makeRoom(); err != nil {
		return err
	}
	if err := d.lock.Truncate(0); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	_, err = d.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	return err
}

// makeRoom deletes the reserve if a start needs its space, and returns an error if the
// space still does not suffice.
func (d *Dir) makeRoom() error {
	free, err := d.free()
	if err == nil && free < minFree && os.Remove(filepath.Join(d.Path, Reserve)) == nil {
		free, err = d.free()
	}
	if err == nil && free < minFree {
		return fmt.Errorf("%w: %s has %d MiB free, %d MiB are needed to start; free some space", ErrFull, d.Path,
			free>>20, minFree>>20)
	}
	return err
}

func (d *Dir) free() (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(d.Path, &s); err != nil {
		return 0, fmt.Errorf("data directory %s: %w", d.Path, err)
	}
	return s.Bavail * uint64(s.Bsize), nil
}

func (d *Dir) holder() string {
	data, err := os.ReadFile(d.lock.Name())
	if err != nil || len(data) == 0 || len(data) > 10 {
		return "another process"
	}
	return "process " + string(data)
}

func (d *Dir) checkFormat() error {
	path := filepath.Join(d.Path, "format")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return durable.WriteFile(path, []byte(strconv.Itoa(Format)+"\n"))
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	format, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("data directory: %s contains %.20q, want a number; is %s a data directory of volplane?",
			path, data, d.Path)
	}
	if format > Format {
		return fmt.Errorf("%w: %s has format %d, this program knows %d; use the program that wrote it", ErrNewer, d.Path,
			format, Format)
	}
	return nil
}

// Close unlocks the directory.
func (d *Dir) Close() error { return d.lock.Close() }
