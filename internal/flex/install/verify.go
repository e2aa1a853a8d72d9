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

// verifyPause is the pause between looks at what a host tells.
const verifyPause = 20 * time.Millisecond

// Verify asks the bridge of a root directory whether it has loaded a version
// that was installed at a time, and waits until it has, or found out since then
// that it cannot, or ctx ends. An error is host.ErrNoHost when there is nobody to
// ask, as of a kubelet, which tells nothing of its drivers.
func Verify(ctx context.Context, root string, o Options, hash string, at time.Time) (host.State, error) {
	again := time.NewTicker(verifyPause)
	defer again.Stop()
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
		case <-again.C:
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

// held returns how many volumes of a driver the bridge of a root directory
// takes care of, mounted or not.
func held(root string, name decide.Name) int {
	if root == "" {
		return 0
	}
	report, err := host.ReadReport(root)
	if err != nil {
		return recorded(root, name)
	}
	return stateIn(report, name).InUse
}

// recorded returns of how many volumes a bridge that has ended left records: the
// next one will undo what they say.
func recorded(root string, name decide.Name) int {
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
