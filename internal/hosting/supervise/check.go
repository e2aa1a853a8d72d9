package supervise

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrUnsafe says that others than root and this process's user can write what a program is started from.
var ErrUnsafe = errors.New("others can write it")

// maxLinks is how many symbolic links the kernel follows in a path.
const maxLinks = 40

// checkSafe fails if users other than root and the user of this process could replace what a path leads to: it checks
// each directory and link on the way, from the root down. It does nothing unless this process runs as root, because
// only root has more rights than those users.
//
// The path is used again after the check. That race is harmless: what was checked cannot be changed by those users,
// because changing an entry requires write access to its directory, which was checked before the entry. A symbolic
// link cannot be changed at all.
func checkSafe(path string) error {
	user := uint32(os.Geteuid())
	if user != 0 {
		return nil
	}
	at, rest := "/", path
	for links := 0; ; {
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return &fs.PathError{Op: "look at", Path: at, Err: err}
		}
		if err := verdict(at, st.Mode, st.Uid, user); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			target, err := os.Readlink(at)
			if err != nil {
				return err
			}
			if links++; links > maxLinks {
				return &fs.PathError{Op: "follow", Path: path, Err: unix.ELOOP}
			}
			if at = filepath.Dir(at); filepath.IsAbs(target) {
				at = "/"
			}
			rest = target + "/" + rest
		}
		// What is at has no links, so Join may take ".." literally.
		var name string
		rest = strings.TrimLeft(rest, "/")
		if name, rest, _ = strings.Cut(rest, "/"); name == "" {
			return nil
		}
		at = filepath.Join(at, name)
	}
}

// verdict judges one file or directory on the way. In a directory with the sticky bit others cannot exchange entries
// that are not theirs.
func verdict(path string, mode, owner, user uint32) error {
	const othersWrite = 0o022
	kind := mode & unix.S_IFMT
	switch {
	case owner != 0 && owner != user:
		return fmt.Errorf("%w: %s belongs to user %d: chown -h root %s", ErrUnsafe, path, owner, path)
	case kind == unix.S_IFLNK, kind == unix.S_IFDIR && mode&unix.S_ISVTX != 0, mode&othersWrite == 0:
		return nil
	}
	return fmt.Errorf("%w: %s: chmod go-w %s", ErrUnsafe, path, path)
}

// checkProgram fails if others could exchange an executable, or the interpreter that it names. What does not exist is
// safe: the kernel says so when it is started.
func checkProgram(path string) error {
	for _, path := range []string{path, interpreterOf(path).path} {
		if path == "" {
			continue
		}
		if err := checkSafe(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return err
		}
	}
	return nil
}

// interpreter is what the first line of a script names.
type interpreter struct {
	// path is empty if the file is not a script.
	path string
	// carriageReturn says that the line ends as lines do on Windows.
	carriageReturn bool
}

func interpreterOf(path string) interpreter {
	head, err := headOf(path)
	if err != nil {
		return interpreter{}
	}
	return parseInterpreter(head)
}

// headOf returns the beginning of a regular file, as much as the kernel reads of a script.
func headOf(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, fs.ErrInvalid)
	}
	const most = 256
	return io.ReadAll(io.LimitReader(f, most))
}

// parseInterpreter reads a first line as the kernel does.
func parseInterpreter(head []byte) interpreter {
	line, _, err := bufio.NewReader(bytes.NewReader(head)).ReadLine()
	first, isScript := bytes.CutPrefix(line, []byte("#!"))
	if err != nil || !isScript {
		return interpreter{}
	}
	// ReadLine drops the carriage return, which the kernel takes for a part of the line.
	returns := bytes.HasPrefix(head[len(line):], []byte("\r\n"))
	path, _, _ := strings.Cut(strings.TrimLeft(string(first), " \t"), " ")
	path, _, _ = strings.Cut(path, "\t")
	return interpreter{path: path, carriageReturn: returns}
}
