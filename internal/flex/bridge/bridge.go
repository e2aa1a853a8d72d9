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

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable"
	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/mount"
)

// Host finds drivers; *host.Host is one.
type Host interface {
	// Get returns a driver that is ready, Kept one that can at least unmount and
	// detach. The errors say why there is none.
	Get(decide.Name) (*flex.Driver, error)
	Kept(decide.Name) (*flex.Driver, error)
	// Subscribe tells where each driver stands, and each change.
	Subscribe(func(host.State)) (cancel func())
	// Keep says that somebody needs a driver, until Drop.
	Keep(name decide.Name, user string)
	Drop(name decide.Name, user string)
}

// Options say where a bridge works.
type Options struct {
	// Host finds the drivers.
	Host Host
	// Node is the name of this host's Node, which is the driver's name of it,
	// too.
	Node string
	// RootDir holds mounts and records. Its path has three parts. One bridge at
	// a time uses it.
	RootDir string
	// SocketDir holds a directory for each driver, with its socket csi.sock.
	SocketDir string
	// RegistryDir is where the node agent looks for registration sockets; empty
	// announces nothing.
	RegistryDir string
	// Config is the administrator's.
	Config decide.Config
	// Changed, if any, is told of each driver when it is served, and when what
	// it can do has changed. It must not wait.
	Changed func(Served)
	// Log receives what is worth telling.
	Log *slog.Logger
}

// Served is a driver that is served.
type Served struct {
	// Name is the CSI driver's; Attach says that its volumes are attached.
	Name   string
	Attach bool
}

const (
	// again is the pause before a driver that could not be served is served
	// anew.
	again = 10 * time.Second
	// lockWait is how long another bridge may hold the root directory still.
	lockWait = 2 * time.Second
	// farewell bounds how long answers under way are waited for; the work that
	// they are about goes on.
	farewell = time.Second
)

// Bridge serves the drivers of one host.
type Bridge struct {
	Options
	records *records
	works   works
	// names are those of attached volumes and of private directories, held by who
	// sees to it that one volume has them.
	names locks
	table mount.Table
	lock  *os.File
	// unnamed are the drivers that have been complained of. It is Run's.
	unnamed map[decide.Name]bool
}

// Open reads what an earlier life left in the root directory, which it makes.
// The host keeps the drivers that are needed for it: Open comes before the host
// begins to look. Close ends what it began.
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
	waits, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	lock, err := durable.Lock(waits, filepath.Join(o.RootDir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("another bridge works in %s: %w", o.RootDir, err)
	}
	b := &Bridge{Options: o, lock: lock, unnamed: map[decide.Name]bool{}}
	if b.records, err = openRecords(filepath.Join(state, "volumes"), o.Host, o.Log); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return b, nil
}

// Close lets another bridge work in the root directory, and removes that if
// nothing is in it any more. The host has ended by then.
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

// removeEmpty removes the directories of a pattern that nothing is in.
func (b *Bridge) removeEmpty(pattern string) {
	found, _ := filepath.Glob(filepath.Join(b.RootDir, pattern))
	for _, path := range found {
		_ = os.Remove(filepath.Clean(path))
	}
}

// Run serves the drivers that the host finds until ctx ends. Volumes stay
// mounted.
func (b *Bridge) Run(ctx context.Context) error {
	n := &news{wake: make(chan struct{}, 1), states: map[string]host.State{}}
	defer b.Host.Subscribe(n.hear)()
	serving := map[decide.Name]*server{}
	defer func() {
		for _, s := range serving {
			s.stop()
		}
		for _, s := range serving {
			<-s.ended
		}
	}()
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		b.follow(ctx, serving, n.now())
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		case <-tick.C:
		}
	}
}

// news are the newest states, by name.
type news struct {
	wake   chan struct{}
	mu     sync.Mutex
	states map[string]host.State
}

func (n *news) hear(s host.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.states[s.Name] = s; s.State == decide.Removed && s.InUse == 0 {
		delete(n.states, s.Name)
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *news) now() []host.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Values(n.states), func(a, b host.State) int { return strings.Compare(a.Name, b.Name) })
}

// follow starts and ends servers as the drivers' states want it.
func (b *Bridge) follow(ctx context.Context, serving map[decide.Name]*server, states []host.State) {
	wanted := map[decide.Name]bool{}
	for _, state := range states {
		name, err := decide.ParseName(state.Name)
		if err != nil || !b.named(name) {
			continue
		}
		has := serving[name]
		if has == nil && !begins(state) {
			continue
		}
		wanted[name] = true
		if has.lives() && has.driver.ability == b.abilityOf(state, name, has) {
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

// begins says whether a driver that is not served has to be: it is ready, or it
// is not and there is something to take away with what is kept of it. What one
// can do whose init is running is known soon.
func begins(s host.State) bool {
	return s.State == decide.Ready || s.State != decide.Probing && s.InUse > 0
}

// named says whether a driver can have a CSI name, and tells once if it cannot.
func (b *Bridge) named(n decide.Name) bool {
	_, err := n.CSI()
	if err != nil && !b.unnamed[n] {
		b.unnamed[n] = true
		b.Log.Error("driver cannot be served", "driver", n.String(), "err", err)
	}
	return err == nil
}

// ability is what a driver is announced to be able to do.
type ability struct {
	decide.Capabilities
	provision, expand bool
}

// abilityOf returns what a driver can do as far as it is known: what it said
// when it was ready, or what it is served with, or what its kept version said.
// As long as volumes of it are attached or staged, it can undo that.
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
		a.Attach = len(b.records.of(n, func(r *record) bool { return r.Kind == attached || r.Kind == staged })) > 0
	}
	return a
}
