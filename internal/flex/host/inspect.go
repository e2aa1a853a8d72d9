package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/volume"
)

// candidate is an executable that may be called.
type candidate struct {
	name decide.Name
	// path is the path that is executed, and real the same with all links resolved.
	path, real string
	// mark identifies the version of the file.
	mark string
	// linked says that path contains a symbolic link, so that there may be no event at path when the file changes.
	linked bool
}

// inspect inspects one entry of the plugin directory, without executing anything. It returns the executable, or why it
// must not be executed; neither if there is nothing. An error means that the entry could not be inspected.
func inspect(dir, name string) (*candidate, volume.Because, error) {
	if !decide.Visible(name) {
		return nil, volume.Because{}, nil
	}
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, volume.Because{}, err
	}
	steps, err := pathSteps(dir)
	if err != nil {
		return nil, volume.Because{}, err
	}
	entry := decide.Entry{Name: name}
	// The plugin directory may be a link that changes at any time: all checks use the directory
	// that it led to at the beginning.
	inRoot := filepath.Join(root, name, decide.ExecutableName(name))
	real, info, err := entryFacts(&entry, root, filepath.Join(root, name), inRoot)
	if err != nil {
		return nil, volume.Because{}, err
	}
	if entry.File != nil {
		entry.File.Way = steps
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

// entryFacts adds the facts about the file at an entry of the plugin directory.
func entryFacts(e *decide.Entry, root, dir, path string) (real string, info fs.FileInfo, err error) {
	info, err = os.Stat(dir)
	if err != nil || !info.IsDir() {
		return "", nil, ignoreNotExist(err)
	}
	e.Directory = true
	if filepath.Dir(path) != dir {
		return "", nil, nil // the name ends with a tilde
	}
	if _, err := os.Lstat(path); err != nil {
		return "", nil, ignoreNotExist(err)
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

// outerNames returns the number of a file's hard links outside of the plugin directory. Inside, an
// installer creates a second one for a moment.
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

// maxSteps is the largest number of directories and links on the way to a path.
const maxSteps = 255

// pathSteps returns the directories and symbolic links on the way to a path, without the file at its end.
func pathSteps(path string) ([]decide.Owned, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	var way []decide.Owned
	for at, rest := "/", strings.Split(path, "/"); len(way) < maxSteps; {
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

// Diverted returns by which directory or symbolic link on the way to a path users other than root
// could make the path lead elsewhere, or "" if they cannot.
func Diverted(path string) (string, error) {
	way, err := pathSteps(path)
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

// ignoreNotExist returns err, or nil if err says that the file does not exist.
func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
		return nil
	}
	return err
}

// reason returns an error's text without the path, which the caller adds.
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

// mark returns a text that identifies a file and its version.
func mark(real string, info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return real
	}
	return fmt.Sprintf("%s %d:%d %d %v %v %v", real, st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim, info.Mode())
}

// Survey inspects a plugin directory once, as a Host does, and calls init of all drivers concurrently. It changes
// nothing and may be repeated. A directory that does not exist has no drivers.
func Survey(ctx context.Context, dir string) ([]State, error) {
	entries, err := os.ReadDir(dir)
	if ignoreNotExist(err) != nil {
		return nil, fmt.Errorf("read plugin directory: %w", err)
	}
	var all []State
	var wait sync.WaitGroup
	var mu sync.Mutex
	for _, e := range entries {
		wait.Go(func() {
			if s := survey(ctx, dir, e.Name()); s.State != decide.Removed {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, s)
			}
		})
	}
	wait.Wait()
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func survey(ctx context.Context, dir, entry string) State {
	facts := decide.DriverFacts{Name: strconv.Quote(entry)}
	c, refused, err := inspect(dir, entry)
	if err != nil {
		refused = volume.Say(volume.ReasonFlexDriverRefused, volume.User(),
			"the driver in directory "+facts.Name+" cannot be looked at: "+err.Error())
	}
	if name, err := decide.ParseDir(entry); err == nil {
		facts.Name = name.String()
	}
	facts.Refused, facts.Present, facts.Probed = refused, c != nil, c != nil
	var ready *driver.Driver
	if c != nil {
		if ready, err = driver.Probe(ctx, c.name, c.path, driver.Options{}); err != nil {
			ready, facts.Failure = nil, err.Error()
		}
	}
	return stateOf(facts, dir, entry, ready)
}

// Refused returns why a host would not execute the file at an entry of a plugin directory; the
// reason is empty if it would, or if there is no file.
func Refused(dir, entry string) (volume.Because, error) {
	_, why, err := inspect(dir, entry)
	return why, err
}
