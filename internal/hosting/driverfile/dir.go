package driverfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/durable"
)

// Dir is the path of a directory of drivers. Its files are NAME.yaml or NAME.yml; other names, and
// names that begin with a dot, are ignored.
type Dir string

// Read returns the drivers of the directory, sorted by name, and why each of the other files cannot be
// used, by its path. One broken file does not disturb the others; of two files for one driver, both are
// broken. If the directory itself cannot be used, no driver is returned, and the error is under
// the directory's path: that does not mean that there are no drivers. A missing directory has none.
func (p Dir) Read() ([]Driver, map[string]error) {
	broken := map[string]error{}
	dir, err := p.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, broken
	}
	if err != nil {
		broken[string(p)] = err
		return nil, broken
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		broken[string(p)] = fmt.Errorf("read directory of drivers: %w", err)
		return nil, broken
	}
	found := map[string]Driver{}
	for _, file := range names {
		if NameOf(file) == "" {
			continue
		}
		d, _, err := readDriver(dir, file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // It was removed since.
		}
		if path := filepath.Join(string(p), file); err != nil {
			broken[path] = err
		} else {
			found[path] = d
		}
	}
	refuseTwins(found, broken)
	out := make([]Driver, 0, len(found))
	for _, d := range found {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Driver) int { return strings.Compare(a.Name, b.Name) })
	return out, broken
}

// NameOf returns the driver's name in the path of a file; empty if the file is not about a driver.
func NameOf(path string) string {
	file := filepath.Base(path)
	ext := filepath.Ext(file)
	if ext != ".yaml" && ext != ".yml" || strings.HasPrefix(file, ".") {
		return ""
	}
	return strings.TrimSuffix(file, ext)
}

// refuseTwins moves drivers whose processes have the same name from found to broken: NAME.yaml and
// NAME.yml, or the drivers "x" with two processes and "x-node".
func refuseTwins(found map[string]Driver, broken map[string]error) {
	claims := map[string][]string{}
	for path, d := range found {
		for _, p := range d.Processes {
			claims[d.ProcessName(p)] = append(claims[d.ProcessName(p)], path)
		}
		claims["driver "+d.Name] = append(claims["driver "+d.Name], path)
	}
	for _, paths := range claims {
		slices.Sort(paths)
		for _, path := range paths {
			others := slices.DeleteFunc(slices.Clone(paths), func(other string) bool { return other == path })
			if len(others) > 0 {
				broken[path] = fmt.Errorf("%s is about a process of the same name; remove or rename one of them", others[0])
				delete(found, path)
			}
		}
	}
}

// Get returns the driver of that name. It fails with fs.ErrNotExist if there is no file for it.
func (p Dir) Get(name string) (Driver, error) {
	if err := csi.CheckName(name); err != nil {
		return Driver{}, err
	}
	all, broken := p.Read()
	for path, err := range broken {
		if NameOf(path) == name || path == string(p) {
			return Driver{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	for _, d := range all {
		if d.Name == name {
			return d, nil
		}
	}
	return Driver{}, fmt.Errorf("driver %s in %s: %w", name, p, fs.ErrNotExist)
}

// Put writes the file of a driver, which replaces an earlier one with its comments. It makes the
// directory if needed. It may be repeated.
func (p Dir) Put(d Driver) error {
	if err := Check(d); err != nil {
		return err
	}
	data, err := format(d)
	if err != nil {
		return fmt.Errorf("driver %s: %w", d.Name, err)
	}
	if err := os.MkdirAll(string(p), 0o700); err != nil {
		return fmt.Errorf("make directory of drivers: %w", err)
	}
	dir, err := p.lock()
	if err != nil {
		return err
	}
	defer dir.Close()
	return durable.WriteFile(p.file(d.Name), data)
}

// Remove deletes the file of a driver, also one that cannot be read. It may be repeated.
func (p Dir) Remove(name string) error {
	if err := csi.CheckName(name); err != nil {
		return err
	}
	dir, err := p.lock()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return errors.Join(durable.Remove(p.path(name, ".yaml")), durable.Remove(p.path(name, ".yml")))
}

// Restart sets RestartedAt of a driver and keeps the rest of its file, with comments, as it is. It
// returns the driver as it is then. It may be repeated.
func (p Dir) Restart(name string, at time.Time) (Driver, error) {
	if _, err := p.Get(name); err != nil {
		return Driver{}, err
	}
	dir, err := p.lock()
	if err != nil {
		return Driver{}, err
	}
	defer dir.Close()
	path := p.file(name)
	d, text, err := readDriver(dir, filepath.Base(path))
	if err != nil {
		return Driver{}, fmt.Errorf("%s: %w", path, err)
	}
	d.RestartedAt = at.UTC().Format(time.RFC3339Nano)
	text, err = withRestart(text, d)
	if err != nil {
		return Driver{}, fmt.Errorf("driver %s: %w", name, err)
	}
	return d, durable.WriteFile(path, text)
}

var restartLine = regexp.MustCompile(`(?m)^restartedAt:.*\n?`)

// withRestart returns the text of a file with the driver's RestartedAt, on a line of its own where the
// text allows that.
func withRestart(text []byte, d Driver) ([]byte, error) {
	line := "restartedAt: \"" + d.RestartedAt + "\"\n"
	edited := restartLine.ReplaceAllLiteralString(string(text), line)
	if !restartLine.Match(text) {
		edited = strings.TrimRight(string(text), "\n") + "\n" + line
	}
	if got, err := Parse([]byte(edited)); err == nil && reflect.DeepEqual(got, d) {
		return []byte(edited), nil
	}
	return format(d)
}

func (p Dir) path(name, ext string) string { return filepath.Join(string(p), name+ext) }

// file returns the path of a driver's file: NAME.yml if that exists, else NAME.yaml.
func (p Dir) file(name string) string {
	other := p.path(name, ".yml")
	if _, err := os.Lstat(other); err == nil {
		return other
	}
	return p.path(name, ".yaml")
}

// open returns the directory if no other user may change it.
func (p Dir) open() (*os.File, error) {
	dir, err := os.OpenFile(string(p), os.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open directory of drivers: %w", err)
	}
	if err := private(dir, string(p)); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

const (
	// lockPatience is how long a change waits for those of other processes, which take milliseconds.
	lockPatience = 5 * time.Second
	lockPause    = 10 * time.Millisecond
)

// lock opens the directory for a change; closing it ends the change. Writes of one file must not
// overlap, and a file of its own for the lock would show up where people look.
func (p Dir) lock() (*os.File, error) {
	dir, err := p.open()
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(lockPatience); ; time.Sleep(lockPause) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(until) {
			return nil, errors.Join(fmt.Errorf("%s is being changed by another process (%w): repeat the command", p, err),
				dir.Close())
		}
	}
}

// private refuses what users other than root and the user of this process could change. The mode
// is not changed here, because the content may already have been changed.
func private(f *os.File, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("the user %d owns %s, and could have programs started as root: read it, and run "+
			"chown root %s", st.Uid, path, path)
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("others may write to %s (mode %04o), and could have programs started as root: read it, and run "+
			"chmod go-w %s", path, st.Mode&0o7777, path)
	}
	return nil
}

// readDriver returns the driver of a file in an open directory, and the file's text.
func readDriver(dir *os.File, file string) (Driver, []byte, error) {
	path := filepath.Join(dir.Name(), file)
	fd, err := unix.Openat(int(dir.Fd()), file, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return Driver{}, nil, errors.New("it is a symbolic link; put the file itself there")
	}
	if err != nil {
		return Driver{}, nil, fmt.Errorf("open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Driver{}, nil, err
	}
	if !info.Mode().IsRegular() {
		return Driver{}, nil, errors.New("it is not a regular file; remove or rename it")
	}
	if err := private(f, path); err != nil {
		return Driver{}, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Driver{}, nil, fmt.Errorf("read %s: %w", path, err)
	}
	d, err := Parse(data)
	if err != nil {
		return Driver{}, nil, err
	}
	if name := NameOf(file); d.Name != name {
		return Driver{}, nil, fmt.Errorf("name: it is %s in a file of %s; write the same name to both", d.Name, name)
	}
	return d, data, nil
}
