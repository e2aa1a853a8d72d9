package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/host"
)

// Listing is the state of all drivers of this host.
type Listing struct {
	Directory Directory `json:"directory"`
	// Running says that the state is that of a running bridge; otherwise it was found by calling each driver's init.
	Running bool         `json:"running"`
	Drivers []host.State `json:"drivers"`
}

// List returns the state of the drivers as the running bridge has it. If none runs, the drivers are
// probed, and their volumes are those that are mounted.
func List(ctx context.Context, o Options) (Listing, error) {
	d, err := o.find()
	if err != nil && d.Path == "" {
		return Listing{}, err
	}
	l := Listing{Directory: d}
	report, err := host.ReadReport(o.root(d))
	if err == nil && report.Dir == d.Path {
		l.Running, l.Drivers = true, report.Drivers
		return l, nil
	}
	if err != nil && !errors.Is(err, host.ErrNoHost) {
		return l, err
	}
	if l.Drivers, err = host.Survey(ctx, d.Path); err != nil {
		return l, err
	}
	for i := range l.Drivers {
		name, err := decide.ParseName(l.Drivers[i].Name)
		if err != nil {
			continue
		}
		used, err := inUse(name)
		if err != nil {
			return l, err
		}
		l.Drivers[i].InUse = volumesIn(used, name)
	}
	return l, nil
}

// Select removes all drivers but those with the names. A name that no driver has is an error.
func (l *Listing) Select(names []string) error {
	if len(names) == 0 {
		return nil
	}
	var kept []host.State
	for _, name := range names {
		i := slices.IndexFunc(l.Drivers, func(s host.State) bool { return s.Name == name })
		if i < 0 {
			return fmt.Errorf("driver %s: %w in %s: 'volplane flex list' shows what is", name, ErrAbsent,
				l.Directory.Path)
		}
		kept = append(kept, l.Drivers[i])
	}
	l.Drivers = kept
	return nil
}

// Locate returns the path and the name of a driver that is given by the path of its file or, if it is installed, by its
// name.
func Locate(subject string, o Options) (path string, name decide.Name, err error) {
	dir := ""
	if info, err := os.Stat(subject); err == nil && info.Mode().IsRegular() {
		// A path may look like a driver's name; an existing file takes precedence.
		if subject, err = filepath.Abs(subject); err != nil {
			return "", decide.Name{}, fmt.Errorf("find driver: %w", err)
		}
	} else {
		// Nothing may be installed into the directory, and the driver be there nevertheless.
		d, _ := o.find()
		dir = d.Path
	}
	if path, name, err = locate(subject, dir); err != nil {
		return "", name, err
	}
	if _, err := os.Stat(path); err != nil {
		return "", name, fmt.Errorf("find driver %s: %w: give the path of a file, or the name of one that 'volplane "+
			"flex list' shows", subject, err)
	}
	return path, name, nil
}

// locate returns the path and the name of a driver that is given by its path ("/x/lofs", "./lofs")
// or, if it is installed in a plugin directory, by its name.
func locate(subject, pluginDir string) (path string, name decide.Name, err error) {
	if strings.HasPrefix(subject, "/") || strings.HasPrefix(subject, ".") {
		if path, err = filepath.Abs(subject); err != nil {
			return "", decide.Name{}, fmt.Errorf("find driver: %w", err)
		}
		name, err = decide.ParseDir(filepath.Base(filepath.Dir(path)))
		if err != nil || name.Driver != filepath.Base(path) {
			name, err = decide.ParseName(filepath.Base(path))
		}
		return path, name, err
	}
	if name, err = decide.ParseName(subject); err != nil {
		return "", decide.Name{}, fmt.Errorf("find driver: %w", err)
	}
	return filepath.Join(pluginDir, name.Dir(), name.Driver), name, nil
}
