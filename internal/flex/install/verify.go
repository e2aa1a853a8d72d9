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

// Verify waits until the bridge of a root directory reports that it has loaded a version that was
// installed at a time, or that it cannot, or ctx ends. The error wraps host.ErrNoHost if no bridge
// runs: a kubelet does not report its drivers.
func Verify(ctx context.Context, root string, o Options, hash string, at time.Time) (host.State, error) {
	tick := time.NewTicker(verifyInterval)
	defer tick.Stop()
	for {
		report, err := host.ReadReport(root)
		if err == nil && report.Dir != o.Directory.Path {
			err = host.ErrNoHost
		}
		if err != nil {
			return host.State{}, err
		}
		s := stateIn(report, o.Name)
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
	if root == "" {
		return 0
	}
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
