package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/volume"
)

// Errors of Get and Kept.
var (
	// ErrNoDriver is the answer about a driver that is not installed. It may be
	// at any time.
	ErrNoDriver = errors.New("no such FlexVolume driver")
	// ErrNotReady is the answer about a driver that is broken, or whose init has
	// not ended yet.
	ErrNotReady = errors.New("the FlexVolume driver is not ready")
)

// defaultRescan is the pause between looks that no notice asked for. The watch is
// what finds drivers, this is the net below it (F-052).
const defaultRescan = 30 * time.Second

// Host finds the drivers in a directory and knows where each of them stands
// (seed 002). Its fields are set before Run; all methods are safe for
// concurrent use.
type Host struct {
	// Dir is the plugin directory. It is made when it is not there, also later.
	Dir string
	// StateDir is where copies of executables are kept (below "kept"); it is the
	// host's own.
	StateDir string
	Log      *slog.Logger
	// RescanEvery is the pause between looks that no notice asked for; the
	// default is 30 s.
	RescanEvery time.Duration
	// Options are those of a driver, but for Calls, which all versions of it
	// share; nil is the zero value.
	Options func(decide.Name) driver.Options

	// follow gives notices; nil is the kernel's.
	follow func() *watch

	// telling is held while a change is made and told, so that subscribers see
	// changes in their order. It is taken before mu.
	telling     sync.Mutex
	subscribers map[int]func(State)
	lastID      int

	mu sync.Mutex
	// slots are the drivers by the name of their directory.
	slots map[string]*slot
	// scanned says that the plugin directory was read.
	scanned bool
}

// State is what a host says of one driver.
type State struct {
	// Name is "example.com/lofs", or what the directory is called, quoted, where
	// that is no driver's name.
	Name string `json:"name"`
	// Path is the executable.
	Path string `json:"path"`
	// Hash is that of the version that is ready; empty when none is.
	Hash string `json:"hash,omitempty"`
	// Capabilities are what its init said.
	Capabilities decide.Capabilities `json:"capabilities,omitzero"`
	State        decide.Standing     `json:"state"`
	Reason       volume.Reason       `json:"reason"`
	Message      string              `json:"message"`
	// Next names who acts next; empty when nobody needs to.
	Next string `json:"next,omitempty"`
	// LastGood is the hash of the version that is kept to unmount volumes with.
	LastGood string `json:"lastGood,omitempty"`
	// Since is when State, Reason or Hash changed last.
	Since time.Time `json:"since"`
	// InUse is how many volumes use the driver.
	InUse int `json:"inUse"`
}

// slot is everything that a host knows of one directory.
type slot struct {
	dir   string
	label string
	name  decide.Name
	valid bool

	// seen is what would be executed; nil when nothing is.
	seen    *candidate
	refused volume.Because
	// probed and failure are how the last init of what is seen ended.
	probed  bool
	failure string
	// ready is the version of which init succeeded last, while nothing else is
	// known of what is there now.
	ready *driver.Driver
	// kept is the last good version, as a copy; sought says that it was looked
	// for in StateDir.
	kept   *driver.Driver
	sought bool
	// calls are those of all versions.
	calls driver.Calls

	users map[string]bool
	// attached is what the driver said of attaching when the first of them came.
	attached bool

	state State
	// signals wakes the goroutine that calls init, which stop ends; nil while
	// there is none.
	signals chan struct{}
	stop    context.CancelFunc
	// gone is when it was last seen that nothing is there any more.
	gone time.Time
}

// Get returns a driver that is ready. Otherwise the error is ErrNoDriver or
// ErrNotReady and says why. It may be repeated.
func (h *Host) Get(name decide.Name) (*driver.Driver, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.slots[name.Dir()]
	switch {
	case !h.scanned:
		return nil, fmt.Errorf("%w: nobody has looked for driver %s yet", ErrNotReady, name)
	case s == nil:
		return nil, fmt.Errorf("%w: %s is not in %s", ErrNoDriver, name, h.Dir)
	case s.ready != nil:
		return s.ready, nil
	case s.state.State == decide.Removed:
		return nil, fmt.Errorf("%w: %s", ErrNoDriver, s.state.Message)
	}
	return nil, fmt.Errorf("%w: %s", ErrNotReady, s.state.Message)
}

// Kept returns the driver that volumes are unmounted and detached with, and
// nothing else: the one that is ready, or else the copy of its last good
// version (H16). The errors are those of Get.
func (h *Host) Kept(name decide.Name) (*driver.Driver, error) {
	d, err := h.Get(name)
	if err == nil {
		return d, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.slots[name.Dir()]; s != nil && s.kept != nil {
		return s.kept, nil
	}
	return nil, err
}

// List returns what is known of every driver that is there, or in use, by name.
func (h *Host) List() []State {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []State
	for _, s := range h.slots {
		if s.state.State != "" && (s.state.State != decide.Removed || len(s.users) > 0) {
			all = append(all, s.state)
		}
	}
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Subscribe calls f with the state of every driver, and again whenever one
// changes, in the order of the changes, until cancel is called. f must not wait
// and must not call Keep, Drop, Subscribe or cancel.
func (h *Host) Subscribe(f func(State)) (cancel func()) {
	h.telling.Lock()
	defer h.telling.Unlock()
	h.lastID++
	id := h.lastID
	if h.subscribers == nil {
		h.subscribers = map[int]func(State){}
	}
	h.subscribers[id] = f
	for _, s := range h.List() {
		f(s)
	}
	return func() {
		h.telling.Lock()
		defer h.telling.Unlock()
		delete(h.subscribers, id)
	}
}

// Keep says that somebody (a volume's name and the like) needs the driver until
// Drop is called. It may be repeated, and is called before Run for what was in
// use before.
func (h *Host) Keep(name decide.Name, user string) {
	h.change(name.Dir(), func(s *slot) {
		h.findKept(s)
		if len(s.users) == 0 {
			s.attached = s.attaches()
		}
		s.users[user] = true
	})
}

// Drop ends what Keep began. It may be repeated.
func (h *Host) Drop(name decide.Name, user string) {
	h.change(name.Dir(), func(s *slot) { delete(s.users, user) })
}

// attaches says whether the driver, as far as it is known, attaches volumes.
func (s *slot) attaches() bool {
	switch {
	case s.ready != nil:
		return s.ready.Capabilities.Attach
	case s.kept != nil:
		return s.kept.Capabilities.Attach
	}
	return s.attached
}

// change changes what is known of one directory, and tells when that makes
// another state. f is called with mu held.
func (h *Host) change(dir string, f func(*slot)) {
	h.telling.Lock()
	defer h.telling.Unlock()
	h.mu.Lock()
	s := h.slot(dir)
	f(s)
	if !h.scanned {
		h.mu.Unlock()
		return // what is not there is not gone yet
	}
	before, after := s.state, h.stateOf(s)
	s.state = after
	h.mu.Unlock()
	if before == after || before.State == "" && after.State == decide.Removed && after.InUse == 0 {
		return
	}
	h.log(before, after)
	for _, tell := range h.subscribers {
		tell(after)
	}
}

// slot returns the slot of a directory. The caller holds mu.
func (h *Host) slot(dir string) *slot {
	if s := h.slots[dir]; s != nil {
		return s
	}
	s := &slot{dir: dir, label: strconv.Quote(dir), users: map[string]bool{}}
	if name, err := decide.ParseDir(dir); err == nil {
		s.name, s.valid, s.label = name, true, name.String()
	}
	if h.slots == nil {
		h.slots = map[string]*slot{}
	}
	h.slots[dir] = s
	return s
}

// stateOf decides where a driver stands. The caller holds mu.
func (h *Host) stateOf(s *slot) State {
	facts := decide.DriverFacts{
		Name: s.label, Present: s.seen != nil, Refused: s.refused, Probed: s.probed, Failure: s.failure,
		Attaches: s.attaches(), Attached: s.attached, InUse: len(s.users),
	}
	if s.kept != nil {
		facts.Kept = s.kept.Hash
	}
	standing, why := decide.Stand(facts)
	st := State{
		Name: s.label, Path: filepath.Join(h.Dir, s.dir, decide.ExecutableName(s.dir)), State: standing,
		Reason: why.Reason, Message: why.Message, Next: why.Next, LastGood: facts.Kept, InUse: facts.InUse,
		Since: s.state.Since,
	}
	if s.ready != nil {
		st.Hash, st.Capabilities = s.ready.Hash, s.ready.Capabilities
	}
	if b := s.state; b.State != st.State || b.Reason != st.Reason || b.Hash != st.Hash {
		st.Since = time.Now()
	}
	return st
}

// log writes down what became of a driver; why it is not used is a warning
// (F-048).
func (h *Host) log(before, after State) {
	if before.State == after.State && before.Message == after.Message && before.Hash == after.Hash {
		return
	}
	log := h.Log.With("driver", after.Name, "reason", string(after.Reason))
	switch {
	case after.State == decide.Broken, after.State == decide.Removed && after.InUse > 0, after.State == decide.Ready &&
		after.Next != "":
		log.Warn("FlexVolume driver needs attention", "why", after.Message, "path", after.Path)
	case after.State == decide.Ready:
		log.Info("FlexVolume driver is ready", "hash", after.Hash, "path", after.Path)
	case after.State == decide.Removed:
		log.Info("FlexVolume driver is gone", "path", after.Path)
	}
}
