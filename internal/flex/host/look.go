package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

// candidate is an executable that may be called.
type candidate struct {
	name decide.Name
	// path is what is called, and real where it is, all links followed.
	path, real string
	// mark changes whenever the file does.
	mark string
	// linked says that a symbolic link leads there, so that what happens to the
	// file may not be noticed at its path.
	linked bool
}

// lookAt finds out what is at one name of the plugin directory. Nothing of it is
// executed. An error means that it is not known.
func lookAt(dir, name string) (*candidate, volume.Because, error) {
	if !decide.Visible(name) {
		return nil, volume.Because{}, nil
	}
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, volume.Because{}, err
	}
	way, err := wayTo(dir)
	if err != nil {
		return nil, volume.Because{}, err
	}
	entry := decide.Entry{Name: name}
	// The plugin directory may be a link that changes at any moment: all is looked
	// at in one and the same directory.
	inRoot := filepath.Join(root, name, decide.ExecutableName(name))
	real, info, err := entryFacts(&entry, root, filepath.Join(root, name), inRoot)
	if err != nil {
		return nil, volume.Because{}, err
	}
	if entry.File != nil {
		entry.File.Way = way
	}
	kind, own, because := decide.ReadEntry(entry)
	switch kind {
	case decide.Refused:
		return nil, because, nil
	case decide.NoDriver:
		return nil, volume.Because{}, nil
	}
	return &candidate{
		name: own, path: filepath.Join(dir, name, decide.ExecutableName(name)), real: real, mark: mark(real, info),
		linked: real != inRoot,
	}, volume.Because{}, nil
}

// entryFacts fills in what is at an entry of the plugin directory.
func entryFacts(e *decide.Entry, root, dir, path string) (real string, info fs.FileInfo, err error) {
	info, err = os.Stat(dir)
	if err != nil || !info.IsDir() {
		return "", nil, unlessGone(err)
	}
	e.Directory = true
	if filepath.Dir(path) != dir {
		return "", nil, nil // the name ends with a tilde
	}
	if _, err := os.Lstat(path); err != nil {
		return "", nil, unlessGone(err)
	}
	e.File = &decide.File{}
	if real, err = filepath.EvalSymlinks(path); err != nil {
		e.File.Broken = fmt.Sprintf("a symbolic link leads nowhere: %s", reason(err))
		return "", nil, nil
	}
	if !below(root, real) {
		e.File.Outside = real
		return real, nil, nil
	}
	if info, err = os.Lstat(real); err != nil {
		return "", nil, err
	}
	e.File.Self = OwnedBy(real, info)
	for at := filepath.Dir(real); below(root, at) || at == root; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return "", nil, err
		}
		e.File.Above = append(e.File.Above, OwnedBy(at, info))
	}
	e.File.Outer, err = outerNames(root, info)
	return real, info, err
}

// outerNames returns how many names a file has besides those in the plugin
// directory, where an installer gives it a second one for a moment.
func outerNames(root string, file fs.FileInfo) (uint64, error) {
	st, ok := file.Sys().(*syscall.Stat_t)
	if !ok || !file.Mode().IsRegular() || st.Nlink <= 1 {
		return 0, nil
	}
	names := uint64(st.Nlink) //nolint:unconvert // it is narrower elsewhere
	for _, pattern := range []string{"*", "*/*"} {
		inside, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			return 0, err
		}
		for _, name := range inside {
			if info, err := os.Lstat(filepath.Join(root, name)); err == nil && os.SameFile(info, file) && names > 0 {
				names--
			}
		}
	}
	return names, nil
}

// maxWay bounds how many directories and links lead to a path.
const maxWay = 255

// wayTo returns the directories and symbolic links by which a path is reached,
// without what is there in the end.
func wayTo(path string) ([]decide.Owned, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	var way []decide.Owned
	for at, rest := "/", strings.Split(path, "/"); len(way) < maxWay; {
		info, err := os.Lstat(at)
		if err != nil {
			return nil, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if len(rest) == 0 {
				return way, nil
			}
			way = append(way, OwnedBy(at, info))
			at, rest = filepath.Join(at, rest[0]), rest[1:]
			continue
		}
		to, err := os.Readlink(at)
		if err != nil {
			return nil, err
		}
		way = append(way, OwnedBy(at, info))
		rest = append(strings.Split(to, "/"), rest...)
		if at = filepath.Dir(at); filepath.IsAbs(to) {
			at = "/"
		}
	}
	return nil, &fs.PathError{Op: "follow", Path: path, Err: syscall.ELOOP}
}

// Diverted says how others than root could have something else found at a path,
// by a directory or a symbolic link on the way, and "" if nobody could.
func Diverted(path string) (string, error) {
	way, err := wayTo(path)
	if err != nil {
		return "", err
	}
	for _, o := range way {
		if why := o.Diverted(); why != "" {
			return strconv.Quote(o.Path) + " " + why, nil
		}
	}
	return "", nil
}

// unlessGone returns an error that does not just say that nothing is there.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
		return nil
	}
	return err
}

// reason returns what an error says without the path, which the caller names.
func reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func below(root, path string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/")
}

// OwnedBy returns who may write to a file or directory.
func OwnedBy(path string, info fs.FileInfo) decide.Owned {
	o := decide.Owned{Path: path, Mode: info.Mode()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		o.UID, o.GID = st.Uid, st.Gid
	}
	return o
}

// mark returns what tells a file from what it was before and from any other.
func mark(real string, info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return real
	}
	return fmt.Sprintf("%s %d:%d %d %v %v %v", real, st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim, info.Mode())
}
