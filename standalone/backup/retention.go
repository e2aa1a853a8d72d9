package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/external"
)

// suffix ends the names of automatic backups; they begin with their time.
const (
	suffix = ".tar.gz"
	layout = "20060102T150405Z"
)

// Name returns where a backup is kept that is made now.
func Name(dataDir, reason string, now time.Time) string {
	return filepath.Join(dataDir, datadir.Backups, now.UTC().Format(layout)+"-"+reason+suffix)
}

// Keep makes a backup every so often, and removes the oldest when there are more than most, until ctx ends. It removes
// only backups that it has made itself.
func Keep(ctx context.Context, o Options, every time.Duration, most int, log *slog.Logger) {
	for pause(ctx, time.Until(due(o.DataDir, every, time.Now()))) {
		err := keepOne(o, most, func() error {
			_, err := SaveRunning(ctx, o, Name(o.DataDir, o.Reason, time.Now()))
			return err
		})
		if err == nil || ctx.Err() != nil {
			continue
		}
		log.Error("no backup is created, will be retried", "err", err)
		if !pause(ctx, min(every, retry)) {
			return
		}
	}
}

// pause waits, and returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// retry is the pause after a backup that failed.
const retry = 10 * time.Minute

// Upgrade is the reason of a backup that is made before another version changes the data; this many of them are kept.
const (
	Upgrade  = "upgrade"
	upgrades = 3
)

// KeepStopped makes a backup of a stopped control plane, in a file whose name comes from Name; the caller holds the
// directory.
func KeepStopped(ctx context.Context, o Options, file string) error {
	left, err := filepath.Glob(filepath.Join(o.DataDir, draft+"*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		return fmt.Errorf("keep backups: %w", err)
	}
	return keepOne(o, upgrades, func() error {
		at, err := external.Recorded(o.DataDir)
		if err == nil && at.IsZero() {
			_, err = saveStopped(ctx, o, file)
		} else if err == nil {
			_, err = SaveRunning(ctx, o, file)
		}
		return err
	})
}

// keepOne makes a backup and removes the oldest ones with the same reason.
func keepOne(o Options, most int, save func() error) error {
	dir := filepath.Join(o.DataDir, datadir.Backups)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep backups: %w", err)
	}
	if err := sweep(dir); err != nil {
		return err
	}
	if err := save(); err != nil {
		return fmt.Errorf("%w; make room, or delete what is not needed in %s", err, dir)
	}
	own := ownBackups(o.DataDir, o.Reason)
	for _, name := range own[:max(0, len(own)-most)] {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove an old backup: %w", err)
		}
	}
	return nil
}

// Newest returns the time of the newest backup in a data directory, whatever it was made for; zero if there is none.
func Newest(dataDir string) time.Time {
	last := time.Time{}
	for _, name := range ownBackups(dataDir, "") {
		if at, err := time.Parse(layout, name[:len(layout)]); err == nil && at.After(last) {
			last = at
		}
	}
	return last
}

// due returns when the next backup is due.
func due(dataDir string, every time.Duration, now time.Time) time.Time {
	// A wrong clock must not delay the next backup for years.
	if next := Newest(dataDir).Add(every); next.Before(now.Add(every)) {
		return next
	}
	return now
}

// ownBackups returns the names of the backups that were made for a reason, or for any reason, the oldest first.
func ownBackups(dataDir, reason string) []string {
	entries, err := os.ReadDir(filepath.Join(dataDir, datadir.Backups))
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		name := e.Name()
		if len(name) <= len(layout) {
			continue
		}
		if _, err := time.Parse(layout, name[:len(layout)]); err != nil {
			continue
		}
		if rest, ok := strings.CutSuffix(name[len(layout):], suffix); ok && strings.HasPrefix(rest, "-") &&
			(reason == "" || rest == "-"+reason) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// longest is more than any backup takes.
const longest = 24 * time.Hour

// sweep removes what a killed backup has left; one that is being made continues.
func sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, draft+"*"))
	for _, path := range left {
		info, e := os.Stat(path)
		if e == nil && time.Since(info.ModTime()) > longest {
			e = os.RemoveAll(path)
		}
		err = errors.Join(err, e)
	}
	if err != nil {
		return fmt.Errorf("keep backups: %w", err)
	}
	return nil
}
