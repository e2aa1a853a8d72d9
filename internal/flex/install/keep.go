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
	// settleTime is how long the plugin directory must be unchanged before it is checked: an
	// installer makes several changes.
	settleTime = 200 * time.Millisecond
	// resyncInterval is the time between checks without an event: the directory may have been
	// replaced by one that is not watched, as when a node gets a new image.
	resyncInterval = time.Minute
	// firstPause is the first delay of the back-off after a failure, and lastPause the longest.
	firstPause = time.Second
	lastPause  = time.Minute
)

// keep is Keep for a change that is made again and again.
func (c change) keep(ctx context.Context, log *slog.Logger, done func(Report)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch plugin directory: %w", err)
	}
	defer w.Close()
	k := keeper{change: c, log: log, watch: w, done: done}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			pause, err := k.sync(ctx)
			if err != nil {
				return err
			}
			timer.Reset(pause)
		case e := <-w.Events:
			if k.concerns(e.Name) {
				timer.Reset(max(settleTime, k.pause))
			}
		case err := <-w.Errors:
			log.Warn("a file event may be lost", "dir", c.directory.Path, "err", err)
			timer.Reset(settleTime)
		}
	}
}

type keeper struct {
	change
	log   *slog.Logger
	watch *fsnotify.Watcher
	done  func(Report)
	// installed says that an installation has succeeded. pause is the delay after the next failure.
	installed bool
	pause     time.Duration
}

// sync installs the driver once, and returns when to do so again.
func (k *keeper) sync(ctx context.Context) (time.Duration, error) {
	r, err := k.install(ctx)
	if err == nil {
		// The watched directory may have been replaced since.
		err = errors.Join(k.watch.Add(k.directory.Path), k.watch.Add(filepath.Dir(r.Path)))
	}
	if errors.Is(err, ErrRefused) && !k.installed && ctx.Err() == nil {
		return 0, err
	}
	if err != nil {
		k.pause = min(max(2*k.pause, firstPause), lastPause)
		k.log.Warn("driver is not installed, will be retried", "driver", k.Name, "after", k.pause, "err", err)
		return k.pause, nil
	}
	k.pause = 0
	if r.Deed != Unchanged || !k.installed {
		k.done(r)
	}
	k.installed = true
	return resyncInterval, nil
}

// concerns says whether a changed path belongs to the driver, and not to others or to the files
// kept beside it.
func (k *keeper) concerns(path string) bool {
	home := filepath.Join(k.directory.Path, k.name.Dir())
	return path == home || path == filepath.Join(home, k.name.Driver) || path == k.directory.Path
}
