package backup

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// block is the size of reads; a block of zeros becomes a hole in the copy.
const block = 64 << 10

// copyTree copies regular files and directories, without sockets. The copy is temporary
// and therefore not synced.
func copyTree(from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	in, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer out.Close()
	return fs.WalkDir(in.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || path == ".":
			return err
		case e.IsDir():
			return out.Mkdir(path, 0o700)
		case !e.Type().IsRegular():
			return nil
		}
		return copyFile(in, out, path)
	})
}

// copyFile copies a file with holes for zeros, because most of etcd's preallocated space
// contains zeros.
func copyFile(from, to *os.Root, path string) (err error) {
	in, err := from.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := to.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
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
	return out.Truncate(size)
}
