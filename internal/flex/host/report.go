package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
)

// ErrNoHost says that no host tells what it knows of drivers.
var ErrNoHost = errors.New("no bridge runs")

// maxReport bounds a report that is read.
const maxReport = 16 << 20

// Report is what a running host tells everybody on its machine.
type Report struct {
	// Dir is the host's plugin directory.
	Dir     string  `json:"dir"`
	Drivers []State `json:"drivers"`
}

// reportPath returns where the host of a root directory leaves its report, and
// the file that it has locked as long as it runs.
func reportPath(root string) (report, lock string) {
	return filepath.Join(root, "state", "drivers.json"), filepath.Join(root, "state", "drivers.lock")
}

// Tell writes what the host knows of its drivers below root whenever that
// changes, until ctx ends. ReadReport reads it.
func (h *Host) Tell(ctx context.Context, root string) error {
	path, lock := reportPath(root)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("tell the state of drivers: %w", err)
	}
	// Who reads the report looks at the lock for a moment.
	held, err := durable.Lock(ctx, lock)
	if errors.Is(err, durable.ErrLocked) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("tell the state of drivers: %w", err)
	}
	defer held.Close()
	changed := make(chan struct{}, 1)
	defer h.Subscribe(func(State) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	for {
		if err := durable.WriteJSON(path, Report{Dir: h.Dir, Drivers: h.List()}); err != nil {
			h.Log.Warn("state of drivers cannot be told", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// ReadReport returns what the host that runs with the root directory last told.
// The error is ErrNoHost when none runs.
func ReadReport(root string) (Report, error) {
	path, lock := reportPath(root)
	held, err := os.Open(lock)
	if unlessGone(err) != nil {
		return Report{}, fmt.Errorf("read the state of drivers: %w", err)
	}
	if err != nil {
		return Report{}, fmt.Errorf("%w with root directory %s", ErrNoHost, root)
	}
	defer held.Close()
	// The kernel lets go of the lock when the host ends, however it ends.
	if err := unix.Flock(int(held.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return Report{}, fmt.Errorf("%w with root directory %s", ErrNoHost, root)
	} else if !errors.Is(err, unix.EWOULDBLOCK) {
		return Report{}, fmt.Errorf("read the state of drivers: %w", err)
	}
	var r Report
	if err := durable.ReadJSON(path, maxReport, &r); err != nil {
		return Report{}, fmt.Errorf("read the state of drivers: %w", err)
	}
	return r, nil
}
