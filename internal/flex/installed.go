package flex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/check"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/flex/install"
)

// Types of the results that the commands about FlexVolume drivers print.
type (
	// Report is the result of an installation.
	Report = install.Report
	// Directory is a plugin directory and how it was found.
	Directory = install.Directory
	// State is the state of one driver.
	State = host.State
)

// Dir is the default plugin directory of Kubernetes.
const Dir = install.Default

// loadTime is how long a running bridge may take to load a driver that was installed.
const loadTime = 15 * time.Second

// Options are the parameters of the commands about installed drivers.
type Options struct {
	// Name is the driver's name, such as "example.com/lofs".
	Name string
	// Source is the executable to install, or the directory that contains it.
	Source string
	// Dir is the plugin directory; if empty, it is found. DataDir selects the control plane whose
	// directory is used if several run.
	Dir, DataDir string
	// Named says that DataDir was named, so that no other host is meant.
	Named bool
	// RootDir is the root directory of the bridge that may run on this host; if empty, that of the
	// bridge that uses the plugin directory.
	RootDir string
	// PayloadDir is the directory into which directories are installed; if empty, one beside the
	// plugin directory.
	PayloadDir string
	// NoInit says that no driver is started: drivers run in another root filesystem than this
	// process.
	NoInit bool
	// Force continues although checks fail or volumes are in use.
	Force bool
}

// find returns the plugin directory.
func (o Options) find() (Directory, error) {
	if o.Dir == "" {
		d, _, err := install.Search{DataDir: o.DataDir, Named: o.Named}.Find()
		if err != nil && d.Advice() != "" {
			err = fmt.Errorf("%w; %s", err, d.Advice())
		}
		return d, err
	}
	path, err := filepath.Abs(o.Dir)
	if err != nil {
		return Directory{}, fmt.Errorf("plugin directory: %w", err)
	}
	d := Directory{Path: path, Because: "--dir", Problem: install.Problem(path)}
	for _, running := range (install.Search{}).Running() {
		if running.Path == path {
			d.Host, d.Root = running.Host, running.Root
			break
		}
	}
	if d.Problem != "" {
		return d, fmt.Errorf("%w: %s: %s; %s", install.ErrNoDirectory, d.Path, d.Problem, d.Advice())
	}
	return d, nil
}

// root returns the root directory of the bridge that may use a plugin directory.
func (o Options) root(d Directory) string {
	return cmp.Or(o.RootDir, d.Root, install.DefaultRoot)
}

// Root returns the root directory of the bridge in a control plane with a
// data directory.
func Root(dataDir string) string { return install.RootOf(dataDir) }

func (o Options) options() (install.Options, error) {
	name, err := decide.ParseName(o.Name)
	if err != nil {
		return install.Options{}, fmt.Errorf("want VENDOR/DRIVER, as example.com/lofs: %w", err)
	}
	dir, err := o.find()
	return install.Options{
		Name: name, Directory: dir, Source: o.Source, PayloadDir: o.PayloadDir, RootDir: o.root(dir), Here: !o.NoInit,
		Force: o.Force,
	}, err
}

// Install installs a driver that is not installed yet. It may be repeated after an error.
func Install(ctx context.Context, o Options) (Report, error) {
	return o.install(ctx, false, true)
}

// Upgrade replaces an installed driver by another version. It may be repeated.
func Upgrade(ctx context.Context, o Options) (Report, error) {
	return o.install(ctx, true, false)
}

func (o Options) install(ctx context.Context, upgrade, absent bool) (Report, error) {
	i, err := o.options()
	if err != nil {
		return Report{Name: o.Name, Directory: i.Directory}, err
	}
	i.Upgrade, i.Absent = upgrade, absent
	at := time.Now()
	r, err := install.Install(ctx, i)
	switch {
	case err == nil:
		o.verify(ctx, i, at, &r)
	case errors.Is(err, install.ErrOther):
		err = fmt.Errorf("%w: replace it with 'volplane flex upgrade %s %s'", err, o.Name, o.Source)
	case errors.Is(err, install.ErrAbsent):
		err = fmt.Errorf("%w: put it there with 'volplane flex install %s %s'", err, o.Name, o.Source)
	}
	return r, err
}

// verify finds out whether the running bridge, if any, has loaded the driver.
func (o Options) verify(ctx context.Context, i install.Options, at time.Time, r *Report) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	if s, err := install.Verify(ctx, i.RootDir, i, r.Hash, at); !errors.Is(err, host.ErrNoHost) {
		r.Loaded = &s
	}
}

// Keep installs a driver, and installs it again whenever it was changed or removed, until ctx ends.
func Keep(ctx context.Context, o Options, log *slog.Logger, done func(Report)) error {
	i, err := o.options()
	if err != nil {
		return err
	}
	return install.Keep(ctx, i, log, done)
}

// Rollback restores the previous version of a driver.
func Rollback(ctx context.Context, o Options) (Report, error) {
	i, err := o.options()
	if err != nil {
		return Report{Name: o.Name, Directory: i.Directory}, err
	}
	at := time.Now()
	r, err := install.Rollback(ctx, i)
	if err == nil {
		o.verify(ctx, i, at, &r)
	}
	return r, err
}

// Uninstall removes a driver. It may be repeated after an error.
func Uninstall(ctx context.Context, o Options) (Report, error) {
	i, err := o.options()
	if err != nil {
		return Report{Name: o.Name, Directory: i.Directory}, err
	}
	r, err := install.Uninstall(ctx, i)
	if errors.Is(err, install.ErrInUse) {
		err = fmt.Errorf("%w: unmount them first, or use --force, which keeps a copy to unmount them with", err)
	}
	return r, err
}

// Lint checks a plugin directory for mistakes that make hosts ignore or misuse drivers.
func Lint(ctx context.Context, o Options) (Directory, []decide.Finding, error) {
	d, err := o.find()
	if err != nil && !errors.Is(err, install.ErrNoDirectory) || d.Path == "" {
		return d, nil, err
	}
	findings, err := install.Lint(ctx, d.Path, !o.NoInit)
	return d, findings, err
}

// Listing is the state of all drivers of this host.
type Listing struct {
	Directory Directory `json:"directory"`
	// Told says that the state is that of a running bridge; otherwise it was found by calling each
	// driver's init.
	Told    bool    `json:"told"`
	Drivers []State `json:"drivers"`
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
		l.Told, l.Drivers = true, report.Drivers
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
		used, err := install.InUse(name)
		if err != nil {
			return l, err
		}
		l.Drivers[i].InUse = install.Volumes(name, used)
	}
	return l, nil
}

// Select removes all drivers but those with the names. A name that no driver has is an error.
func (l *Listing) Select(names []string) error {
	if len(names) == 0 {
		return nil
	}
	var kept []State
	for _, name := range names {
		i := slices.IndexFunc(l.Drivers, func(s State) bool { return s.Name == name })
		if i < 0 {
			return fmt.Errorf("driver %s: %w in %s: 'volplane flex list' shows what is", name, install.ErrAbsent,
				l.Directory.Path)
		}
		kept = append(kept, l.Drivers[i])
	}
	l.Drivers = kept
	return nil
}

// Capabilities returns a driver's capabilities as a text for people.
func Capabilities(s State) string {
	if s.State != decide.Ready {
		return ""
	}
	return check.Capabilities(s.Capabilities)
}

// Languages returns the languages in which Skeleton writes drivers; the first one is the default.
func Languages() []string { return []string{install.Shell, install.Python, install.Go} }

// Skeleton writes a working example of a driver and its test into a directory; if dir is empty,
// into a directory with the driver's name. With attach the driver attaches. It returns the paths of
// the files, the test last.
func Skeleton(name, dir, language string, attach bool) ([]string, error) {
	n, err := decide.ParseName(name)
	if err != nil {
		return nil, fmt.Errorf("driver %q: want VENDOR/DRIVER, as example.com/lofs: %w", name, err)
	}
	if dir == "" {
		dir = n.Driver
	}
	return install.Skeleton{Name: n, Language: language, Attach: attach}.Write(dir)
}
