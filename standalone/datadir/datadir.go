package datadir

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/mount"
)

// Format is the version of the directory's layout that this program writes. It reads all older versions.
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

// Open creates the directory if it does not exist and locks it for this process until Close or the end of the process.
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

// makeRoom deletes the reserve if a start needs its space, and returns an error if the space still does not suffice.
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

// versionFile holds the version of the program that has used the directory last.
const versionFile = "version"

// mostVersion limits the size of the version file.
const mostVersion = 1 << 10

// Unknown is used for a version that did not write the file.
const Unknown = "an older version"

// Upgrade records the version of this program. If another version has used the directory,
// Upgrade first calls save, and returns that version.
func (d *Dir) Upgrade(version string, save func() error) (from string, err error) {
	path := filepath.Join(d.Path, versionFile)
	data, err := durable.ReadFile(path, mostVersion)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("version of the data directory: %w", err)
	}
	from = strings.TrimSpace(string(data))
	if from == version {
		return "", nil
	}
	from = cmp.Or(from, Unknown)
	if err := save(); err != nil {
		return "", err
	}
	return from, durable.WriteFile(path, []byte(version+"\n"))
}

// Backups is the directory of automatic backups in a data directory.
const Backups = "backup"

// maxListed is how many backups the error about damage lists.
const maxListed = 3

// Used returns a file or directory that proves that a control plane has used the data
// directory, and therefore had objects; "" without such a proof.
func (d *Dir) Used() string {
	for _, path := range []string{"admin.kubeconfig", "node/journal/*", "pool/volumes/*"} {
		if found, err := filepath.Glob(filepath.Join(d.Path, path)); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// Damaged returns an error that lists what is damaged, what is safe, and which command to run. It wraps the cause.
func (d *Dir) Damaged(what string, cause error) error {
	return &damage{dir: d.Path, what: what, cause: cause}
}

type damage struct {
	dir, what string
	cause     error
}

// Unwrap returns the cause.
func (d *damage) Unwrap() error { return d.cause }

// Error returns the text, which has several lines.
func (d *damage) Error() string {
	var out strings.Builder
	fmt.Fprintf(&out, `the control plane cannot start with %s: %v

  damaged  %s
  safe     the volumes' data; nothing was changed, and what is mounted stays mounted
  backups  `, d.dir, d.cause, d.what)
	restore := "FILE"
	if all := d.backups(); len(all) > 0 {
		fmt.Fprintf(&out, "%s\n", strings.Join(all, "\n           "))
		restore = all[0]
	} else {
		fmt.Fprintf(&out, "none in %s; use one from elsewhere below\n", filepath.Join(d.dir, Backups))
	}
	fmt.Fprintf(&out, `
Next step:
  volplane restore %s --data-dir %s
Do not delete anything in %s before that. Without a backup, repair what is damaged, or start from scratch with another
directory and --data-dir; this directory keeps the data of the volumes, in pool.`, restore, d.dir, d.dir)
	return out.String()
}

// backups returns the newest backups, newest first; their names begin with their time.
func (d *damage) backups() []string {
	entries, err := os.ReadDir(filepath.Join(d.dir, Backups))
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range slices.Backward(entries) {
		if !strings.HasPrefix(e.Name(), ".") && len(all) < maxListed {
			all = append(all, filepath.Join(d.dir, Backups, e.Name()))
		}
	}
	return all
}

// plugins is the directory of FlexVolume drivers in a data directory, unless a user sets another one.
const plugins = "volumeplugins"

// reached refuses a path through a symbolic link, because the kernel shows mounts below it at another path.
func reached(path string) error {
	for at := path; ; at = filepath.Dir(at) {
		if err := mount.CheckPath("data directory", at); err != nil {
			return fmt.Errorf("%w: %w with --data-dir", ErrLink, err)
		}
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return nil
		}
	}
}

// private refuses a directory in which other users can replace something, or could have before it was used here. It
// changes neither owners nor modes, because the path may be a mistake such as /tmp.
func private(path string) error {
	if err := owned(path); err != nil {
		return err
	}
	for _, dir := range []string{path, filepath.Join(path, "pki")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("data directory: %w", err)
		}
		for _, e := range entries {
			if err := owned(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// owned refuses a file or directory of another user, one to which others may write, and a link. An administrator may
// keep drivers and backups elsewhere.
func owned(path string) error {
	var s unix.Stat_t
	err := unix.Lstat(path, &s)
	isLink := err == nil && s.Mode&unix.S_IFMT == unix.S_IFLNK
	if isLink && slices.Contains([]string{Backups, plugins}, filepath.Base(path)) {
		err = unix.Stat(path, &s)
		isLink = false
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("data directory: %s: %w", path, err)
	case isLink:
		return fmt.Errorf("%w: %s is a symbolic link; mount what it leads to there (mount --bind), or remove it", ErrLink,
			path)
	case s.Uid != 0 && int(s.Uid) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to the user with the id %d, who can replace what is in it; if you trust its "+
			"content, run chown -R %d on it, or choose another directory with --data-dir", ErrOpen, path, s.Uid, os.Geteuid())
	case s.Mode&0o022 != 0:
		return fmt.Errorf("%w: others may write to %s (mode %04o); if you trust its content, run chmod go-w on it, or "+
			"choose another directory with --data-dir", ErrOpen, path, s.Mode&0o777)
	}
	return nil
}
