package install

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long nothing must happen in the plugin directory before it is
	// looked at: an installer makes several changes.
	settle = 200 * time.Millisecond
	// rescan is the pause between looks that nothing asked for: a directory may be
	// replaced by one that nobody watches, as when a node gets a new image.
	rescan = time.Minute
	// firstPause and lastPause bound the pause before what failed is tried again.
	firstPause = time.Second
	lastPause  = time.Minute
)

// Keep installs a driver, and again whenever it is not there as it should be,
// until ctx ends: for a container that deploys it (F-058). done is called with
// what each turn did. Only the first turn's failure to pass the checks ends
// Keep; what may pass is tried again.
func Keep(ctx context.Context, o Options, log *slog.Logger, done func(Report)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch plugin directory: %w", err)
	}
	defer w.Close()
	o.Upgrade, o.Absent = true, true
	k := keeper{Options: o, log: log, watch: w, done: done}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			pause, err := k.turn(ctx)
			if err != nil {
				return err
			}
			timer.Reset(pause)
		case e := <-w.Events:
			if k.concerns(e.Name) {
				timer.Reset(max(settle, k.pause))
			}
		case err := <-w.Errors:
			log.Warn("notice of a change may be lost", "dir", o.Directory.Path, "err", err)
			timer.Reset(settle)
		}
	}
}

type keeper struct {
	Options
	log   *slog.Logger
	watch *fsnotify.Watcher
	done  func(Report)
	// installed says that a turn has succeeded, and pause is how long to wait
	// after one that has not.
	installed bool
	pause     time.Duration
}

// turn looks once, and says when to look again.
func (k *keeper) turn(ctx context.Context) (time.Duration, error) {
	r, err := Install(ctx, k.Options)
	if err == nil {
		// What is watched may have been replaced since.
		err = errors.Join(k.watch.Add(k.Directory.Path), k.watch.Add(filepath.Dir(r.Path)))
	}
	if errors.Is(err, ErrRefused) && !k.installed && ctx.Err() == nil {
		return 0, err
	}
	if err != nil {
		k.pause = min(max(2*k.pause, firstPause), lastPause)
		k.log.Warn("driver is not installed, it is tried again", "driver", k.Name.String(), "after", k.pause, "err", err)
		return k.pause, nil
	}
	k.pause = 0
	if r.Deed != Unchanged || !k.installed {
		k.done(r)
	}
	k.installed = true
	return rescan, nil
}

// concerns says whether a change may be one of the driver, and not of others or
// of what is kept beside it.
func (k *keeper) concerns(path string) bool {
	home := filepath.Join(k.Directory.Path, k.Name.Dir())
	return path == home || path == filepath.Join(home, k.Name.Driver) || path == k.Directory.Path
}
