package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/process/lifecycle"
)

// Options configure a bridge.
type Options struct {
	// Host finds the drivers. It must not run before the bridge is open.
	Host *host.Host
	// Node is the name of this host's Node, and also the node id of the CSI drivers.
	Node string
	// RootDir is the directory of mounts and records. Its path must have three components. Only one
	// bridge can use it at a time.
	RootDir string
	// SocketDir is the directory below which each driver has a directory with its socket csi.sock.
	SocketDir string
	// RegistryDir is the directory in which the node agent looks for registration sockets; if
	// empty, drivers are not registered.
	RegistryDir string
	// Config is the administrator's configuration.
	Config decide.Config
	// Changed, if set, is called with each driver when it is served, and again when its
	// capabilities have changed. It must not block.
	Changed func(Served)
	// Calls, if set, records the calls to the drivers.
	Calls *csi.CallLog
	// Log is the log of the bridge.
	Log *slog.Logger
}

// Served is a driver that is served.
type Served struct {
	// Name is the CSI driver's name, and Flex that of the FlexVolume driver. Attach says that its volumes have to be
	// attached.
	Name, Flex string
	Attach     bool
}

const (
	// retryInterval is the time after which a driver that could not be served is retried.
	retryInterval = 10 * time.Second
	// stopTimeout is how long the end of a server waits for answers in flight; the work of those calls continues.
	stopTimeout = time.Second
)

// Bridge serves the drivers of one host.
type Bridge struct {
	Options
	records *records
	calls   calls
	// names serializes work on the names of attached volumes and on private directories, so that
	// each belongs to one volume only.
	names *csi.VolumeLocks
	table mount.Table
	lock  *os.File
	// reported holds the drivers without a possible CSI name that were logged already. Only Run uses it.
	reported map[decide.Name]bool
}

// Open reads the records in the root directory, which it creates if needed, and makes the Host keep
// the drivers that they need: it must be called before the Host runs. Close must be called at the
// end. Open may be repeated after an error.
func Open(o Options) (*Bridge, error) {
	if err := checkRoot(o.RootDir); err != nil {
		return nil, err
	}
	state := filepath.Join(o.RootDir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of the bridge: %w", err)
	}
	if err := checkOwner(o.RootDir); err != nil {
		return nil, err
	}
	waits, cancel := context.WithTimeout(context.Background(), durable.EndWait)
	defer cancel()
	lock, err := durable.Lock(waits, filepath.Join(o.RootDir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("another bridge works in %s: %w", o.RootDir, err)
	}
	b := &Bridge{Options: o, lock: lock, names: csi.NewVolumeLocks(), reported: map[decide.Name]bool{}}
	if b.records, err = openRecords(filepath.Join(state, "volumes"), o.Host, o.Log); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return b, nil
}

// Close releases the lock of the root directory, and removes the directory if it is empty. The Host must have ended.
func (b *Bridge) Close() error {
	dir := func(path string) string { return filepath.Join(b.RootDir, path) }
	for _, name := range []string{"drivers.json", "drivers.lock"} {
		_ = os.Remove(dir("state/" + name))
	}
	for _, d := range []string{"attached", "staged", "published", "made", "."} {
		b.removeEmpty("state/volumes/*/" + d)
	}
	b.removeEmpty("state/calls/*")
	for _, d := range []string{"state/volumes", "state/calls", "state/kept", "state", "pods", "plugins"} {
		_ = os.Remove(dir(d))
	}
	if left, err := os.ReadDir(b.RootDir); err == nil && len(left) == 1 {
		_ = os.Remove(b.lock.Name())
		_ = os.Remove(b.RootDir)
	}
	return errors.Join(b.table.Close(), b.lock.Close())
}

// removeEmpty removes the empty directories that match a pattern.
func (b *Bridge) removeEmpty(pattern string) {
	found, _ := filepath.Glob(filepath.Join(b.RootDir, pattern))
	for _, path := range found {
		_ = os.Remove(filepath.Clean(path))
	}
}

// Run serves the drivers that the Host finds until ctx ends. Volumes stay mounted.
func (b *Bridge) Run(ctx context.Context) error {
	n := &stateQueue{wake: make(chan struct{}, 1), states: map[string]host.State{}}
	defer b.Host.Subscribe(n.add)()
	serving := map[decide.Name]*server{}
	defer func() {
		for _, s := range serving {
			s.stop()
		}
		for _, s := range serving {
			<-s.ended
		}
	}()
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	for {
		b.follow(ctx, serving, n.drain())
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		case <-tick.C:
		}
	}
}

// stateQueue holds the states of drivers that have changed since the last drain, by name.
type stateQueue struct {
	wake   chan struct{}
	mu     sync.Mutex
	states map[string]host.State
}

func (n *stateQueue) add(s host.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.states[s.Name] = s; s.State == decide.Removed && s.InUse == 0 {
		delete(n.states, s.Name)
	}
	lifecycle.Wake(n.wake)
}

func (n *stateQueue) drain() []host.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Values(n.states), func(a, b host.State) int { return strings.Compare(a.Name, b.Name) })
}

// follow starts and stops servers according to the states of the drivers.
func (b *Bridge) follow(ctx context.Context, serving map[decide.Name]*server, states []host.State) {
	wanted := map[decide.Name]bool{}
	for _, state := range states {
		name, err := decide.ParseName(state.Name)
		if err != nil || !b.checkCSIName(name) {
			continue
		}
		has := serving[name]
		if has == nil && !mustServe(state) {
			continue
		}
		wanted[name] = true
		if has.running() && has.driver.ability == b.abilityOf(state, name, has) {
			continue
		}
		has.end()
		delete(serving, name)
		if s := b.serve(ctx, name, b.abilityOf(state, name, has)); s != nil {
			serving[name] = s
		}
	}
	maps.DeleteFunc(serving, func(name decide.Name, s *server) bool {
		if !wanted[name] {
			s.end()
		}
		return !wanted[name]
	})
}

// mustServe says whether a driver that is not served has to be: if it is ready, or if it is not but
// volumes must be undone with its kept version. A driver whose init is still running is waited for.
func mustServe(s host.State) bool {
	return s.State == decide.Ready || s.State != decide.Probing && s.InUse > 0
}

// checkCSIName says whether a driver can have a CSI name, and logs it once if not.
func (b *Bridge) checkCSIName(n decide.Name) bool {
	_, err := n.CSI()
	if err != nil && !b.reported[n] {
		b.reported[n] = true
		b.Log.Error("driver cannot be served", "driver", n.String(), "err", err)
	}
	return err == nil
}

// ability holds the capabilities with which a driver is served.
type ability struct {
	decide.Capabilities
	provision, expand bool
}

// abilityOf returns the capabilities of a driver: those of its last successful init, else those
// with which it is served now, else those of its kept version. As long as volumes are attached or
// staged, the capability to undo that is included.
func (b *Bridge) abilityOf(state host.State, n decide.Name, has *server) ability {
	settings := b.Config.Of(n)
	a := ability{Capabilities: decide.Defaults(), provision: settings.Provision}
	switch kept, err := b.Host.Kept(n); {
	case state.State == decide.Ready:
		a.Capabilities = state.Capabilities
	case has != nil:
		a.Capabilities = has.driver.Capabilities
	case err == nil:
		a.Capabilities = kept.Capabilities
	}
	a.expand = !settings.SkipExpandVolume || a.RequiresFSResize
	if !a.Attach {
		a.Attach = len(b.records.list(n, func(r *record) bool { return r.Kind == attached || r.Kind == staged })) > 0
	}
	return a
}
