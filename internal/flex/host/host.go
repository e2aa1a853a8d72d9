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
	// ErrNoDriver says that the driver is not installed. It may be installed later.
	ErrNoDriver = errors.New("no such FlexVolume driver")
	// ErrNotReady says that the driver is broken, or that its init has not ended yet.
	ErrNotReady = errors.New("the FlexVolume driver is not ready")
)

// defaultRescan is the resync interval: kernel events find drivers, the resync only catches what
// they miss (F-052).
const defaultRescan = 30 * time.Second

// Host discovers the drivers in a directory and knows the state of each (seed 002). Its fields are
// set before Run. All methods are safe for concurrent use.
type Host struct {
	// Dir is the plugin directory. It is created whenever it does not exist.
	Dir string
	// StateDir is the directory of copies of executables (below "kept"). No other host may use it.
	StateDir string
	Log      *slog.Logger
	// RescanEvery is the resync interval; the default is 30 s.
	RescanEvery time.Duration
	// Options returns the options of a driver, except Calls, which all its versions share. Nil
	// stands for the zero value.
	Options func(decide.Name) driver.Options

	// newWatch returns the source of file events; nil stands for the kernel.
	newWatch func() *watch

	// notifyMu is held while a state is changed and subscribers are notified, so that they see
	// changes in order. It is locked before mu.
	notifyMu    sync.Mutex
	subscribers map[int]func(State)
	lastID      int

	mu sync.Mutex
	// slots holds the drivers, by the name of their directory.
	slots map[string]*slot
	// scanned says that the plugin directory has been read.
	scanned bool
}

// State is the state of one driver.
type State struct {
	// Name is the driver's name, "example.com/lofs", or the quoted name of its directory if that is
	// not a driver's name.
	Name string `json:"name"`
	// Path is the path of the executable.
	Path string `json:"path"`
	// Hash is the hash of the version that is ready; empty if none is.
	Hash string `json:"hash,omitempty"`
	// Capabilities are those that init returned.
	Capabilities decide.Capabilities `json:"capabilities,omitzero"`
	State        decide.Standing     `json:"state"`
	Reason       volume.Reason       `json:"reason"`
	Message      string              `json:"message"`
	// Next is who acts next; it is zero when no one has to act.
	Next volume.Actor `json:"next,omitzero"`
	// LastGood is the hash of the version that is kept to unmount volumes.
	LastGood string `json:"lastGood,omitempty"`
	// Since is the time of the last change of State, Reason or Hash.
	Since time.Time `json:"since"`
	// InUse is the number of volumes that use the driver.
	InUse int `json:"inUse"`
}

// Can returns the driver's capabilities as a text for people; "" if they are not known.
func (s State) Can() string {
	if s.State != decide.Ready {
		return ""
	}
	return s.Capabilities.Words()
}

// slot is everything that a host knows about one directory.
type slot struct {
	dir   string
	label string
	name  decide.Name
	valid bool

	// found is the executable in the directory; nil if there is none that may be executed.
	found   *candidate
	refused volume.Because
	// probed says that init of seen has ended, and failure why it failed, or "".
	probed  bool
	failure string
	// ready is the version whose init succeeded last; nil once seen is known to be another version.
	ready *driver.Driver
	// kept is the copy of the last good version; sought says that StateDir was searched for it.
	kept     *driver.Driver
	searched bool
	// calls serializes the calls of all versions.
	calls driver.Calls

	users map[string]bool
	// attached is the capability to attach at the time when the first user came.
	attached bool

	state State
	// signals wakes the goroutine that calls init, and stop ends it; nil if there is none.
	signals chan struct{}
	stop    context.CancelFunc
	// goneSince is the time at which the executable was found missing.
	goneSince time.Time
}

// Get returns a driver that is ready. Otherwise the error wraps ErrNoDriver or ErrNotReady and says
// why. It may be repeated.
func (h *Host) Get(name decide.Name) (*driver.Driver, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.slots[name.Dir()]
	switch {
	case !h.scanned:
		return nil, fmt.Errorf("%w: driver %s has not been looked for yet", ErrNotReady, name)
	case s == nil:
		return nil, fmt.Errorf("%w: %s is not in %s", ErrNoDriver, name, h.Dir)
	case s.ready != nil:
		return s.ready, nil
	case s.state.State == decide.Removed:
		return nil, fmt.Errorf("%w: %s", ErrNoDriver, s.state.Message)
	}
	return nil, fmt.Errorf("%w: %s", ErrNotReady, s.state.Message)
}

// Kept returns a driver that can unmount and detach, and must do nothing else: the one that is
// ready, or else the copy of its last good version (H16). The errors are those of Get.
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

// List returns the states of all drivers that are installed or in use, sorted by name.
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

// Subscribe calls f with the state of each driver, and again at each change, in order, until cancel
// is called. f must not block, and must not call Keep, Drop, Subscribe or cancel.
func (h *Host) Subscribe(f func(State)) (cancel func()) {
	h.notifyMu.Lock()
	defer h.notifyMu.Unlock()
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
		h.notifyMu.Lock()
		defer h.notifyMu.Unlock()
		delete(h.subscribers, id)
	}
}

// Keep says that user, a volume for example, needs the driver until Drop is called. It may be
// repeated. For users that exist at the start, it is called before Run.
func (h *Host) Keep(name decide.Name, user string) {
	h.change(name.Dir(), func(s *slot) {
		h.findKept(s)
		if len(s.users) == 0 {
			s.attached = s.attaches()
		}
		s.users[user] = true
	})
}

// Drop undoes Keep. It may be repeated.
func (h *Host) Drop(name decide.Name, user string) {
	h.change(name.Dir(), func(s *slot) { delete(s.users, user) })
}

// attaches says whether the driver attaches volumes, as far as that is known.
func (s *slot) attaches() bool {
	switch {
	case s.ready != nil:
		return s.ready.Capabilities.Attach
	case s.kept != nil:
		return s.kept.Capabilities.Attach
	}
	return s.attached
}

// change changes a slot by f, which is called with mu held, and notifies subscribers if its state
// changes.
func (h *Host) change(dir string, f func(*slot)) {
	h.notifyMu.Lock()
	defer h.notifyMu.Unlock()
	h.mu.Lock()
	s := h.slot(dir)
	f(s)
	if !h.scanned {
		h.mu.Unlock()
		return // before the first scan nothing is known to be missing
	}
	before, after := s.state, h.stateOf(s)
	s.state = after
	h.mu.Unlock()
	if before == after || before.State == "" && after.State == decide.Removed && after.InUse == 0 {
		return
	}
	h.log(before, after)
	for _, notify := range h.subscribers {
		notify(after)
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

// stateOf returns the state of a slot, as the decision has it. The caller holds mu.
func (h *Host) stateOf(s *slot) State {
	facts := decide.DriverFacts{
		Name: s.label, Present: s.found != nil, Refused: s.refused, Probed: s.probed, Failure: s.failure,
		Attaches: s.attaches(), Attached: s.attached, InUse: len(s.users),
	}
	if s.kept != nil {
		facts.Kept = s.kept.Hash
	}
	st := stateOf(facts, h.Dir, s.dir, s.ready)
	if b := s.state; b.State == st.State && b.Reason == st.Reason && b.Hash == st.Hash {
		st.Since = b.Since
	}
	return st
}

// stateOf returns the state since now of the driver in a directory of the plugin directory, as the decision has it;
// ready is nil unless its init has succeeded.
func stateOf(f decide.DriverFacts, pluginDir, dir string, ready *driver.Driver) State {
	standing, why := decide.Stand(f)
	st := State{
		Name: f.Name, Path: filepath.Join(pluginDir, dir, decide.ExecutableName(dir)), State: standing,
		Reason: why.Reason, Message: why.Message, Next: why.Next, LastGood: f.Kept, InUse: f.InUse, Since: time.Now(),
	}
	if ready != nil {
		st.Hash, st.Capabilities = ready.Hash, ready.Capabilities
	}
	return st
}

// log logs a change of state; a driver that cannot be used is a warning (F-048).
func (h *Host) log(before, after State) {
	if before.State == after.State && before.Message == after.Message && before.Hash == after.Hash {
		return
	}
	log := h.Log.With("driver", after.Name, "reason", string(after.Reason))
	switch {
	case after.State == decide.Broken, after.State == decide.Removed && after.InUse > 0, after.State == decide.Ready &&
		!after.Next.IsZero():
		log.Warn("FlexVolume driver needs attention", "why", after.Message, "path", after.Path)
	case after.State == decide.Ready:
		log.Info("FlexVolume driver is ready", "hash", after.Hash, "path", after.Path)
	case after.State == decide.Removed:
		log.Info("FlexVolume driver is gone", "path", after.Path)
	}
}
