package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/host"
)

// verifyInterval is the interval at which a host's report is read.
const verifyInterval = 20 * time.Millisecond

// loadTime is how long a running bridge may take to load a driver that was installed.
const loadTime = 15 * time.Second

// verify adds to a report whether the running bridge, if any, has loaded what was installed at a time.
func (c change) verify(ctx context.Context, at time.Time, r *Report) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	if s, err := c.loaded(ctx, r.Hash, at); !errors.Is(err, host.ErrNoHost) {
		r.Loaded = &s
	}
}

// loaded waits until the bridge of the root directory reports that it has loaded a version that was
// installed at a time, or that it cannot, or ctx ends. The error wraps host.ErrNoHost if no bridge
// runs: a kubelet does not report its drivers.
func (c change) loaded(ctx context.Context, hash string, at time.Time) (host.State, error) {
	tick := time.NewTicker(verifyInterval)
	defer tick.Stop()
	for {
		report, err := host.ReadReport(c.RootDir)
		if err == nil && report.Dir != c.directory.Path {
			err = host.ErrNoHost
		}
		if err != nil {
			return host.State{}, err
		}
		s := stateIn(report, c.name)
		if s.State == decide.Ready && s.Hash == hash || s.State == decide.Broken && s.Since.After(at) {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return s, errors.New("the bridge has not loaded it in time")
		case <-tick.C:
		}
	}
}

func stateIn(r host.Report, name decide.Name) host.State {
	for _, s := range r.Drivers {
		if s.Name == name.String() {
			return s
		}
	}
	return host.State{}
}

// heldVolumes returns the number of a driver's volumes that the bridge of a root directory manages,
// mounted or not.
func heldVolumes(root string, name decide.Name) int {
	report, err := host.ReadReport(root)
	if err != nil {
		return recordedVolumes(root, name)
	}
	return stateIn(report, name).InUse
}

// recordedVolumes returns the number of a driver's volumes that a stopped bridge has records of: the next
// bridge will manage them.
func recordedVolumes(root string, name decide.Name) int {
	csi, err := name.CSI()
	if err != nil {
		return 0
	}
	n := 0
	for _, kind := range []string{"attached", "staged", "published"} {
		entries, _ := os.ReadDir(filepath.Join(root, "state", "volumes", csi, kind))
		n += len(entries)
	}
	return n
}
