package driver

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// identity identifies one version of a file.
type identity struct {
	device, inode uint64
	size          int64
	// modified can be set by the file's owner; no process can set changed (ctime).
	modified, changed unix.Timespec
}

func identityOf(f *os.File) (identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return identity{}, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return identity{device: st.Dev, inode: st.Ino, size: st.Size, modified: st.Mtim, changed: st.Ctim}, nil
}

// openProgram opens the file at a path, following links, and identifies it.
func openProgram(path string) (*os.File, identity, error) {
	// O_NONBLOCK: the open must not block if the file is a pipe.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, identity{}, err
	}
	now, err := identityOf(f)
	if err != nil {
		return nil, now, errors.Join(err, f.Close())
	}
	return f, now, nil
}

// hashOf hashes a file. It fails if the file changes while it is read.
func hashOf(f *os.File, is identity) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, is.size)); err != nil {
		return "", err
	}
	if now, err := identityOf(f); err != nil || now != is {
		return "", errors.Join(fmt.Errorf("%s is being changed", f.Name()), err)
	}
	const shown = 8
	return hex.EncodeToString(sum.Sum(nil)[:shown]), nil
}

// identify returns the identity and the hash of an executable.
func identify(path string) (identity, string, error) {
	f, is, err := openProgram(path)
	if err != nil {
		return is, "", err
	}
	defer f.Close()
	hash, err := hashOf(f, is)
	return is, hash, err
}

// Hash returns the hash of an executable, as Driver has it.
func Hash(path string) (string, error) {
	_, hash, err := identify(path)
	return hash, err
}

// program is an executable that was checked.
type program struct {
	path string
	*os.File
	is identity
	// native says that the file is a binary for this machine, which the kernel runs without an
	// interpreter.
	native bool
}

// open opens the executable, and refuses one that differs from the one probed: even half of a file
// that is being copied can run, and exit with success.
func (d *Driver) open() (*program, error) {
	f, now, err := openProgram(d.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrChanged, err)
	}
	p := &program{path: d.Path, File: f, is: now, native: native(f)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if now == d.file {
		return p, nil
	}
	if hash, err := hashOf(f, now); err != nil || hash != d.Hash {
		return nil, errors.Join(ErrChanged, err, f.Close())
	}
	d.file = now
	return p, nil
}

// start returns the path to execute: the opened file itself, wherever the driver's path leads by
// now. A script is executed by its path, because its interpreter opens the path and the script
// finds its neighbours from it.
func (p *program) start() string {
	if p.native {
		return fmt.Sprintf("/proc/self/fd/%d", p.Fd())
	}
	return p.path
}

// unchanged fails unless the program that ran is the one that was checked: for a script, the path
// must still lead to that file. The ctime proves that it did all the time, because no process can
// reset it.
func (p *program) unchanged() error {
	if p.native {
		return nil
	}
	f, now, err := openProgram(p.path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrExchanged, err)
	}
	if err := f.Close(); err != nil || now != p.is {
		return errors.Join(ErrExchanged, err)
	}
	return nil
}

// native says whether a file is a binary for the same machine as this program.
func native(f *os.File) bool {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return false
	}
	defer self.Close()
	// The header up to e_machine is compared. The ABI, its version, and the type may differ.
	const machine, header = 18, 20
	var ours, its [header]byte
	if _, err := self.ReadAt(ours[:], 0); err != nil {
		return false
	}
	if _, err := f.ReadAt(its[:], 0); err != nil {
		return false
	}
	return bytes.HasPrefix(its[:], []byte(elf.ELFMAG)) && bytes.Equal(ours[:elf.EI_OSABI], its[:elf.EI_OSABI]) &&
		bytes.Equal(ours[machine:], its[machine:])
}
