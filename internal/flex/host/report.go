package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/process/lifecycle"
)

// ErrNoHost says that no host process runs that could report its drivers.
var ErrNoHost = errors.New("no bridge runs")

// maxReport is the size limit of a report that is read, in bytes.
const maxReport = 16 << 20

// Report is the state of all drivers of a running host process, for other processes on the machine.
type Report struct {
	// Dir is the host's plugin directory.
	Dir     string  `json:"dir"`
	Drivers []State `json:"drivers"`
}

// reportPath returns the path of the report below a root directory, and that of the file which the
// host process has locked while it runs.
func reportPath(root string) (report, lock string) {
	return filepath.Join(root, "state", "drivers.json"), filepath.Join(root, "state", "drivers.lock")
}

// ServeReport writes a Report below root whenever a state changes, until ctx ends. ReadReport reads it.
func (h *Host) ServeReport(ctx context.Context, root string) error {
	path, lock := reportPath(root)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("report the state of drivers: %w", err)
	}
	// A reader of the report holds the lock for a moment, too.
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
		lifecycle.Wake(changed)
	})()
	for {
		if err := durable.WriteJSON(path, Report{Dir: h.Dir, Drivers: h.List()}); err != nil {
			h.Log.Warn("the report of drivers cannot be written", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// ReadReport returns the last Report of the host process that runs with a root directory. The error
// wraps ErrNoHost if none runs. It may be repeated.
func ReadReport(root string) (Report, error) {
	path, lock := reportPath(root)
	held, err := os.Open(lock)
	if ignoreNotExist(err) != nil {
		return Report{}, fmt.Errorf("read the state of drivers: %w", err)
	}
	if err != nil {
		return Report{}, fmt.Errorf("%w with root directory %s", ErrNoHost, root)
	}
	defer held.Close()
	// The kernel releases the lock when the host process ends, however it ends.
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
