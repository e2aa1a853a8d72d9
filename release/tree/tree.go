package tree

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// File is a file, a directory or a symbolic link.
type File struct {
	// Path is relative to the root of the tree, with slashes.
	Path string
	// Mode has the permissions, and says that it is a directory or a link.
	Mode fs.FileMode
	// Body is the content of a file.
	Body []byte
	// Link is the target of a link.
	Link string
}

// Tree is a set of files.
type Tree []File

// Program returns a file that can be run.
func Program(name string, body []byte) File { return File{Path: name, Mode: 0o755, Body: body} }

// Text returns a file that can be read.
func Text(name, body string) File { return File{Path: name, Mode: 0o644, Body: []byte(body)} }

// Directory returns a directory.
func Directory(name string) File { return File{Path: name, Mode: fs.ModeDir | 0o755} }

// Link returns a symbolic link.
func Link(name, target string) File {
	return File{Path: name, Mode: fs.ModeSymlink | 0o777, Link: target}
}

// Below returns the same files in a directory.
func (t Tree) Below(dir string) Tree {
	out := slices.Clone(t)
	for i := range out {
		out[i].Path = path.Join(dir, out[i].Path)
	}
	return out
}

// Find returns the file of that path.
func (t Tree) Find(name string) (File, bool) {
	i := slices.IndexFunc(t, func(f File) bool { return f.Path == name })
	if i < 0 {
		return File{}, false
	}
	return t[i], true
}

// Complete returns the tree in the order of its paths, with the directories of all files.
func (t Tree) Complete() (Tree, error) {
	all := map[string]File{}
	for _, f := range t {
		if !fs.ValidPath(f.Path) || f.Path == "." {
			return nil, fmt.Errorf("%q is not a path in a tree", f.Path)
		}
		if _, twice := all[f.Path]; twice {
			return nil, fmt.Errorf("%s exists twice", f.Path)
		}
		all[f.Path] = f
	}
	for _, f := range t {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if above, ok := all[dir]; !ok {
				all[dir] = Directory(dir)
			} else if !above.Mode.IsDir() {
				return nil, fmt.Errorf("%s is below %s, which is not a directory", f.Path, dir)
			}
		}
	}
	out := make(Tree, 0, len(all))
	for _, f := range all {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// Tar writes the complete tree as a tar archive, with owner 0 and the time when.
func (t Tree) Tar(to io.Writer, when time.Time) error {
	complete, err := t.Complete()
	if err != nil {
		return err
	}
	w := tar.NewWriter(to)
	for _, f := range complete {
		h := &tar.Header{
			Name: f.Path, Mode: int64(f.Mode.Perm()), ModTime: when.UTC().Truncate(time.Second), Format: tar.FormatPAX,
			Typeflag: tar.TypeReg, Size: int64(len(f.Body)), Linkname: f.Link,
		}
		switch {
		case f.Mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, f.Path+"/"
		case f.Mode&fs.ModeSymlink != 0:
			h.Typeflag = tar.TypeSymlink
		}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("archive %s: %w", f.Path, err)
		}
		if _, err := w.Write(f.Body); err != nil {
			return fmt.Errorf("archive %s: %w", f.Path, err)
		}
	}
	return w.Close()
}

// TarGz returns the tar archive, compressed.
func (t Tree) TarGz(when time.Time) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if err := errors.Join(t.Tar(z, when), z.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Gzip compresses a text, without its name and time.
func Gzip(text []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression) // as Debian requires for documents
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(text); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Write writes the complete tree to an empty directory.
func (t Tree) Write(dir string) error {
	complete, err := t.Complete()
	if err != nil {
		return err
	}
	for _, f := range complete {
		if err := f.write(filepath.Join(dir, filepath.FromSlash(f.Path))); err != nil {
			return err
		}
	}
	return nil
}

func (f File) write(at string) error {
	switch {
	case f.Mode.IsDir():
		if err := os.Mkdir(at, f.Mode.Perm()); err != nil {
			return err
		}
	case f.Mode&fs.ModeSymlink != 0:
		return os.Symlink(f.Link, at)
	default:
		if err := os.WriteFile(at, f.Body, f.Mode.Perm()); err != nil {
			return err
		}
	}
	// The umask of the process must not change what is released.
	return os.Chmod(at, f.Mode.Perm())
}
