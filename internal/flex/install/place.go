package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/flex/host"
)

// maxDriver bounds the size of an executable.
const maxDriver = 1 << 30

// lockPause is the pause between tries to be the only one who changes a plugin
// directory.
const lockPause = 20 * time.Millisecond

// place is one driver's in a plugin directory that nobody else changes until
// close: the executable, and the files beside it that no host looks at.
type place struct {
	name decide.Name
	// dir is the plugin directory, home the driver's own, exe the executable.
	dir, home, exe string
	lock           *os.File
}

// open waits until nobody else changes the plugin directory, which is made if
// it is not there, and finishes what a killed installer began.
func open(ctx context.Context, dir string, name decide.Name) (*place, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- hosts of other users read it
		return nil, fmt.Errorf("make plugin directory: %w", err)
	}
	if err := owned(dir); err != nil {
		return nil, fmt.Errorf("plugin directory: %w", err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open plugin directory: %w", err)
	}
	p := &place{name: name, dir: dir, home: filepath.Join(dir, name.Dir()), lock: lock}
	p.exe = filepath.Join(p.home, name.Driver)
	if err := p.alone(ctx); err != nil {
		return nil, errors.Join(err, p.close())
	}
	if err := p.recover(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// alone waits for the lock, which the kernel takes back when we end.
func (p *place) alone(ctx context.Context) error {
	again := time.NewTicker(lockPause)
	defer again.Stop()
	for {
		err := unix.Flock(int(p.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another installer is at work in %s: %w", p.dir, ctx.Err())
		case <-again.C:
		}
	}
}

func (p *place) close() error { return p.lock.Close() }

// beside returns the path of a file that is kept beside the driver.
func (p *place) beside(what string) string { return beside(p.dir, p.name, what) }

func beside(dir string, name decide.Name, what string) string {
	return filepath.Join(dir, "."+name.Dir()+"."+what)
}

// recover makes of any state in which an installer can have been killed one in
// which none was. What is installed is whole at any time; this is about the
// rest.
func (p *place) recover() error {
	if err := remove(p.beside("new")); err != nil {
		return err
	}
	kept, err := os.Lstat(p.beside("keep"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at what was kept: %w", err)
	}
	if now, err := os.Lstat(p.exe); err == nil && os.SameFile(kept, now) {
		return remove(p.beside("keep")) // the new one had not come yet
	}
	return p.rename(p.beside("keep"), p.beside("previous"))
}

// put makes the content of a file the driver, in one step for whoever looks. The
// version before becomes the previous one.
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

// swap exchanges the driver and its previous version in one step.
func (p *place) swap() error {
	if err := unix.Renameat2(unix.AT_FDCWD, p.beside("previous"), unix.AT_FDCWD, p.exe, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s and its previous version: %w", p.exe, err)
	}
	return errors.Join(durable.Sync(p.home), durable.Sync(p.dir))
}

// makeHome makes the driver's directory. One that others can write to, or that
// is somewhere else, is refused: what is in it is started as root.
func (p *place) makeHome() error {
	if err := os.Mkdir(p.home, 0o755); err == nil { // #nosec G301 -- hosts of other users read it
		return errors.Join(label(p.home, p.dir), durable.Sync(p.dir))
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the driver's directory: %w", err)
	}
	info, err := os.Lstat(p.home)
	if err != nil {
		return fmt.Errorf("look at the driver's directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is a %s, not a directory: remove it first", p.home, kind(info))
	}
	return owned(p.home)
}

// owned refuses a directory that others than root can change: what is in it is
// started as root.
func owned(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if why := host.OwnedBy(dir, info).Others(); why != "" {
		return fmt.Errorf("%s %s: put that right first, for what is in it is started as root", dir, why)
	}
	why, err := host.Diverted(dir)
	if err == nil && why != "" {
		err = fmt.Errorf("%s, which leads to %s: put that right first, for what is in it is started as root", why, dir)
	}
	return err
}

// write copies a file to a new one, which has everything that a driver needs,
// and is on the disk, when this returns.
func (p *place) write(from, to string) error {
	err := copyFile(from, to, 0o600)
	if err == nil && os.Geteuid() == 0 {
		err = os.Chown(to, 0, 0)
	}
	if err == nil {
		err = label(to, p.home)
	}
	if err == nil {
		err = os.Chmod(to, 0o755) // #nosec G302 -- it is there to be executed
	}
	if err == nil {
		err = durable.Sync(to)
	}
	if err != nil {
		return errors.Join(err, remove(to))
	}
	return nil
}

// unforked runs a deed that writes a file while no process is started by this
// one: a child would have the file open for writing until its own program runs,
// and nobody could start the driver meanwhile ("text file busy").
func unforked(deed func() error) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return deed()
}

func (p *place) rename(from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, 0); err != nil {
		return fmt.Errorf("rename %s to %s: %w", from, to, err)
	}
	return nil
}

// labelName is the attribute in which SELinux keeps what a file is.
const labelName = "security.selinux"

// label gives a file the SELinux label of another, when it has one and the file
// has a different one (F-060). Filesystems without labels are no error.
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

// hashOf returns the start of a file's SHA-256, as hosts show it; "" when there
// is no file.
func hashOf(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxDriver)); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// remove deletes a file; one that is not there is no error.
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
