package backup

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
)

// block is what is read of a file at once; one of zeros is left out of the copy.
const block = 64 << 10

// copyTree copies plain files and directories; what is not there is left out,
// as are sockets.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		at := to + strings.TrimPrefix(path, from)
		switch {
		case e.IsDir():
			return os.Mkdir(at, 0o700)
		case !e.Type().IsRegular():
			return nil
		}
		if err := copyFile(path, at); err != nil {
			return err
		}
		return durable.Sync(filepath.Dir(at))
	})
}

// copyFile copies a file and leaves holes where there are only zeros: most of
// what etcd has allotted is.
func copyFile(from, to string) (err error) {
	in, err := os.OpenFile(from, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	var size int64
	buffer, zeros := make([]byte, block), make([]byte, block)
	for {
		n, err := io.ReadFull(in, buffer)
		if string(buffer[:n]) != string(zeros[:n]) {
			if _, err := out.WriteAt(buffer[:n], size); err != nil {
				return err
			}
		}
		size += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(out.Truncate(size), out.Sync())
}
