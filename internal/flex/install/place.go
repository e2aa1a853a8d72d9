package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/flex/host"
)

// lockPause is the interval of attempts to lock a plugin directory.
const lockPause = 20 * time.Millisecond

// place is the place of one driver in a plugin directory, which is locked until close: the
// executable, and the files beside it that hosts ignore.
type place struct {
	name decide.Name
	// dir is the plugin directory, home the driver's directory, and exe the executable.
	dir, home, exe string
	lock           *os.File
}

// open locks the plugin directory, which is created if it does not exist, and finishes what a
// killed installer has begun.
func open(ctx context.Context, dir string, name decide.Name) (*place, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- hosts of other users read it
		return nil, fmt.Errorf("make plugin directory: %w", err)
	}
	if err := checkRootOwned(dir); err != nil {
		return nil, fmt.Errorf("plugin directory: %w", err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open plugin directory: %w", err)
	}
	p := &place{name: name, dir: dir, home: filepath.Join(dir, name.Dir()), lock: lock}
	p.exe = filepath.Join(p.home, name.Driver)
	if err := p.lockDir(ctx); err != nil {
		return nil, errors.Join(err, p.close())
	}
	if err := p.recover(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// lockDir waits for the lock. The kernel releases it when this process ends.
func (p *place) lockDir(ctx context.Context) error {
	tick := time.NewTicker(lockPause)
	defer tick.Stop()
	for {
		err := unix.Flock(int(p.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another installer is at work in %s: %w", p.dir, ctx.Err())
		case <-tick.C:
		}
	}
}

func (p *place) close() error { return p.lock.Close() }

// beside returns the path of a file that is kept beside the driver.
func (p *place) beside(what string) string { return beside(p.dir, p.name, what) }

func beside(dir string, name decide.Name, what string) string {
	return filepath.Join(dir, "."+name.Dir()+"."+what)
}

// recover completes or undoes the changes of an installer that was killed. The installed driver
// itself is whole at any time.
func (p *place) recover() error {
	if err := remove(p.beside("new")); err != nil {
		return err
	}
	kept, err := os.Lstat(p.beside("keep"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what was kept: %w", err)
	}
	if now, err := os.Lstat(p.exe); err == nil && os.SameFile(kept, now) {
		return remove(p.beside("keep")) // the new version was not installed yet
	}
	return p.rename(p.beside("keep"), p.beside("previous"))
}

// put installs a file as the driver, by one rename. The version before becomes the previous one.
func (p *place) put(from string) error {
	if err := p.makeHome(); err != nil {
		return err
	}
	next := p.beside("new")
	if err := p.write(from, next); err != nil {
		return err
	}
	err := os.Link(p.exe, p.beside("keep"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep the version before: %w", err)
	}
	replaces := err == nil
	if err := p.rename(next, p.exe); err != nil {
		return err
	}
	if err := durable.Sync(p.home); err != nil {
		return err
	}
	if replaces {
		if err := p.rename(p.beside("keep"), p.beside("previous")); err != nil {
			return err
		}
	}
	return durable.Sync(p.dir)
}

// swap exchanges the driver and its previous version atomically.
func (p *place) swap() error {
	if err := unix.Renameat2(unix.AT_FDCWD, p.beside("previous"), unix.AT_FDCWD, p.exe, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s and its previous version: %w", p.exe, err)
	}
	return errors.Join(durable.Sync(p.home), durable.Sync(p.dir))
}

// makeHome creates the driver's directory. An existing one that other users can write to, or that
// is a link, is refused: its content is started as root.
func (p *place) makeHome() error {
	if err := os.Mkdir(p.home, 0o755); err == nil { // #nosec G301 -- hosts of other users read it
		return errors.Join(label(p.home, p.dir), durable.Sync(p.dir))
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the driver's directory: %w", err)
	}
	info, err := os.Lstat(p.home)
	if err != nil {
		return fmt.Errorf("read the driver's directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is a %s, not a directory: remove it first", p.home, kind(info))
	}
	return checkRootOwned(p.home)
}

// checkRootOwned refuses a directory that users other than root can change: its content is started
// as root.
func checkRootOwned(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if why := host.OwnedBy(dir, info).Others(); why != "" {
		return fmt.Errorf("%s %s: correct that first, because its content is started as root", dir, why)
	}
	why, err := host.Diverted(dir)
	if err == nil && why != "" {
		err = fmt.Errorf("%s, which leads to %s: correct that first, because its content is started as root", why, dir)
	}
	return err
}

// write copies a file to a new one with the right owner, mode and label, and syncs it.
func (p *place) write(from, to string) error {
	err := copyFile(from, to, 0o600)
	if err == nil && os.Geteuid() == 0 {
		err = os.Chown(to, 0, 0)
	}
	if err == nil {
		err = label(to, p.home)
	}
	if err == nil {
		err = os.Chmod(to, 0o755) // #nosec G302 -- it must be executable
	}
	if err == nil {
		err = durable.Sync(to)
	}
	if err != nil {
		return errors.Join(err, remove(to))
	}
	return nil
}

// withoutForks calls f, which writes a file, while this process starts no child: a child has the
// file open for writing until its own program runs, so that a host could not start the driver
// until then ("text file busy").
func withoutForks(f func() error) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return f()
}

func (p *place) rename(from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, 0); err != nil {
		return fmt.Errorf("rename %s to %s: %w", from, to, err)
	}
	return nil
}

// labelName is the extended attribute of a file's SELinux label.
const labelName = "security.selinux"

// label gives a file the SELinux label of another file, if that has one (F-060). Filesystems
// without labels are no error.
func label(path, like string) error {
	want, err := labelOf(like)
	if err != nil || want == "" {
		return err
	}
	if have, err := labelOf(path); err != nil || have == want {
		return err
	}
	if err := unix.Lsetxattr(path, labelName, []byte(want), 0); err != nil && !unlabelled(err) {
		return fmt.Errorf("give %s the label of %s: %w", path, like, err)
	}
	return nil
}

func labelOf(path string) (string, error) {
	b := make([]byte, 256)
	n, err := unix.Lgetxattr(path, labelName, b)
	if err != nil && unlabelled(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the label of %s: %w", path, err)
	}
	return string(b[:n]), nil
}

func unlabelled(err error) bool { return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) }

// hashOf returns the hash of an executable, as hosts show it; "" if there is no file.
func hashOf(path string) (string, error) {
	hash, err := driver.Hash(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hash, nil
}

// remove deletes a file. It succeeds if there is none.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func kind(info fs.FileInfo) string {
	switch {
	case info.IsDir():
		return "directory"
	case info.Mode()&fs.ModeSymlink != 0:
		return "symbolic link"
	case info.Mode().IsRegular():
		return "file"
	}
	return "special file"
}
