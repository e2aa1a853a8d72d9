package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// Options are the parameters of the commands about installed drivers.
type Options struct {
	// Name is the driver's name, such as "example.com/lofs".
	Name string
	// Source is the executable to install, or a directory that contains an executable of the driver's
	// name and the files that it needs.
	Source string
	// Dir is the plugin directory; if empty, it is found. DataDir selects the control plane whose
	// directory is used if several run.
	Dir, DataDir string
	// Named says that DataDir was named, so that no other host is meant.
	Named bool
	// RootDir is the root directory of the bridge that may run on this host; if empty, that of the
	// bridge that uses the plugin directory.
	RootDir string
	// PayloadDir is the directory into which directories are installed; if empty, flex-payload beside
	// the plugin directory.
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
		d, err := Search{DataDir: o.DataDir, Named: o.Named}.Find()
		if err != nil && d.Advice() != "" {
			err = fmt.Errorf("%w; %s", err, d.Advice())
		}
		return d, err
	}
	path, err := filepath.Abs(o.Dir)
	if err != nil {
		return Directory{}, fmt.Errorf("plugin directory: %w", err)
	}
	d := Directory{Path: path, Because: "--dir", Problem: Problem(path)}
	for _, running := range (Search{}).Running() {
		if running.Path == path {
			d.Host, d.Root = running.Host, running.Root
			break
		}
	}
	if d.Problem != "" {
		return d, fmt.Errorf("%w: %s: %s; %s", ErrNoDirectory, d.Path, d.Problem, d.Advice())
	}
	return d, nil
}

// root returns the root directory of the bridge that may use a plugin directory.
func (o Options) root(d Directory) string {
	return cmp.Or(o.RootDir, d.Root, DefaultRoot)
}

// change is a change of an installed driver: its options, and what they stand for. RootDir is never empty.
type change struct {
	Options
	name      decide.Name
	directory Directory
	// upgrade replaces an installed version. absent allows that none is installed.
	upgrade, absent bool
}

func (o Options) change() (change, error) {
	c := change{Options: o}
	var err error
	if c.name, err = decide.ParseName(o.Name); err != nil {
		return c, fmt.Errorf("want VENDOR/DRIVER, such as example.com/lofs: %w", err)
	}
	c.directory, err = o.find()
	c.RootDir = o.root(c.directory)
	return c, err
}

// report returns the report of a change that has not been made.
func (c change) report() Report { return Report{Name: c.Name, Directory: c.directory} }

// within calls do, which makes the change, while the plugin directory is locked.
func (c change) within(ctx context.Context, r *Report, do func(*place) error) error {
	p, err := open(ctx, c.directory.Path, c.name)
	if err != nil {
		return err
	}
	r.Path = p.exe
	return errors.Join(do(p), p.close())
}

// Install installs a driver that is not installed yet. It may be repeated after an error, and killed at any moment.
// With an error, the Report still has the findings of the checks.
func Install(ctx context.Context, o Options) (Report, error) {
	return o.install(ctx, false, true)
}

// Upgrade replaces an installed driver by another version. It may be repeated, and killed at any moment.
func Upgrade(ctx context.Context, o Options) (Report, error) {
	return o.install(ctx, true, false)
}

func (o Options) install(ctx context.Context, upgrade, absent bool) (Report, error) {
	c, err := o.change()
	if err != nil {
		return c.report(), err
	}
	c.upgrade, c.absent = upgrade, absent
	at := time.Now()
	r, err := c.install(ctx)
	switch {
	case err == nil:
		c.verify(ctx, at, &r)
	case errors.Is(err, ErrOther):
		err = fmt.Errorf("%w: replace it with 'volplane flex upgrade %s %s'", err, o.Name, o.Source)
	case errors.Is(err, ErrAbsent):
		err = fmt.Errorf("%w: put it there with 'volplane flex install %s %s'", err, o.Name, o.Source)
	}
	return r, err
}

func (c change) install(ctx context.Context) (Report, error) {
	r := c.report()
	err := c.within(ctx, &r, func(p *place) error { return errors.Join(p.install(ctx, c, &r), p.prune(c)) })
	return r, err
}

// Keep installs a driver, and installs it again whenever it was changed or removed, until ctx ends:
// for a container that deploys the driver (F-058). done is called with the report of each
// installation. It returns an error only if the first installation fails its checks; other failures
// are retried.
func Keep(ctx context.Context, o Options, log *slog.Logger, done func(Report)) error {
	c, err := o.change()
	if err != nil {
		return err
	}
	c.upgrade, c.absent = true, true
	return c.keep(ctx, log, done)
}

// Rollback exchanges the driver and its previous version. A second call undoes the first.
func Rollback(ctx context.Context, o Options) (Report, error) {
	c, err := o.change()
	r := c.report()
	if err != nil {
		return r, err
	}
	at := time.Now()
	err = c.within(ctx, &r, func(p *place) error { return p.rollback(ctx, c, &r) })
	if err == nil {
		c.verify(ctx, at, &r)
	}
	return r, err
}

// Uninstall removes a driver. While volumes are mounted, it fails with ErrInUse or, with Force,
// keeps a copy that can unmount them (F-038, H16). It may be repeated; a driver that is not
// installed is ErrAbsent.
func Uninstall(ctx context.Context, o Options) (Report, error) {
	c, err := o.change()
	r := c.report()
	if err != nil {
		return r, err
	}
	if _, err := os.Lstat(c.directory.Path); errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%w: there is no %s", ErrAbsent, c.directory.Path)
	}
	err = c.within(ctx, &r, func(p *place) error { return p.uninstall(c, &r) })
	if errors.Is(err, ErrInUse) {
		err = fmt.Errorf("%w: unmount them first, or use --force, which keeps a copy to unmount them with", err)
	}
	return r, err
}
