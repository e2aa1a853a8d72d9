package story

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// Scene is an API, a driver, and the processes of a controller that follow each other.
type Scene struct {
	testing.TB
	API *kubetest.API
	// Drivers is the set in which the driver is.
	Drivers *csi.Set

	script  *script
	cast    Cast
	options map[string]string
	// out is the script with what happened.
	out []string
	// end are the objects at the end.
	end string

	// begun means that a process has begun, works that the last one works on its own, and dead that it was killed.
	begun, works, dead bool
	// lives are the processes so far.
	lives []*kubetest.Process

	driver *csitest.Driver
	config csitest.Config
	dialed *csi.Driver
	// scope is for whose volumes the process calls the driver.
	scope volume.Scope
	// absent says that the driver is not in the set at the start.
	absent bool
	// had is the driver's inventory after the last command.
	had string

	// mu guards the rest.
	mu    sync.Mutex
	fault fault
	// tried are the writes and calls that the controller attempted, and steps those that were done.
	tried, steps []string
	rules        []*rule
	// reads means that the caches have made their first lists: each later read is a separate request.
	reads bool
	// quiet shows only tables, unordered sorts what happens at the same moment by its objects, and together shows
	// everything at the end, without times.
	quiet, unordered, together bool
	notes
}

// notes are what happened since a command began.
type notes struct {
	since time.Time
	// asked are the reads, deeds the writes and calls, and events the last texts of events, by their names.
	asked  []string
	deeds  []deed
	events map[string]string
}

// deed is something that happened: a line, and lines below it.
type deed struct {
	after time.Duration
	about string
	lines []string
}

func newScene(t *testing.T, s *script, f fault) *Scene {
	c := &Scene{
		TB: t, API: kubetest.NewAPI(t), Drivers: csi.NewSet(), script: s, fault: f, options: map[string]string{},
		notes: notes{since: time.Now(), events: map[string]string{}},
	}
	c.API.Fate, c.API.Seen = c.fate, c.seen
	c.API.PrependReactor("get", "*", c.read)
	c.API.PrependReactor("list", "*", c.read)
	if c.cast = s.cast(c); c.cast.Driver != nil {
		c.config = *c.cast.Driver
	}
	for _, name := range c.cast.Names {
		if _, err := s.library.file(name); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// Option returns an option of the script, empty if it has none.
func (c *Scene) Option(name string) string { return c.options[name] }

// Note adds a line to what has happened.
func (c *Scene) Note(line string) { c.note(line, line) }

// note adds a line about an object, and lines below it.
func (c *Scene) note(about string, lines ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deeds = append(c.deeds, deed{time.Since(c.since), about, lines})
}

// seen records a write or an event.
func (c *Scene) seen(w kubetest.Write) {
	if e, ok := w.After.(*corev1.Event); ok {
		c.hear(e)
		return
	}
	resource, sub, _ := strings.Cut(w.Resource, "/")
	if resource == "events" {
		return
	}
	object := short(resource) + "/" + w.Name
	line := strings.TrimSuffix(w.Verb+" "+object+" "+sub, " ") + w.Limits
	// Whether two clients meet depends on the order in which workers run.
	met := apierrors.IsConflict(w.Err) && !strings.Contains(w.Err.Error(), byScript)
	if !c.works || !met && resource != c.cast.Lazy {
		lines := c.changes(w)
		lines[0] = line + lines[0] + ending(w.Done, w.Err)
		c.note(object, lines...)
	}
	if w.Done {
		c.did(line)
	}
}

// did counts a write or call that was done, and checks the invariants.
func (c *Scene) did(step string) {
	c.mu.Lock()
	c.steps = append(c.steps, step)
	steps := slices.Clone(c.steps)
	c.mu.Unlock()
	if c.cast.Holds != nil && slices.Contains(c.out, "faults") {
		if err := c.cast.Holds(c.API, steps); err != nil {
			c.Errorf("after %s: %v", strings.Join(steps, ", "), err)
		}
	}
}

// done are the writes and calls that were done. Whether a deletion whose answer was lost is repeated depends on how
// soon the watch reports it, and repeating it does nothing.
func (c *Scene) done() string {
	steps := slices.Clone(c.steps)
	if c.works {
		slices.Sort(steps)
	}
	return alike(strings.Join(slices.CompactFunc(steps, func(a, b string) bool {
		return a == b && strings.HasPrefix(a, "delete ")
	}), ", "))
}

func (c *Scene) hear(e *corev1.Event) {
	about := strings.Trim(e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "/")
	line := fmt.Sprintf("%s %s/%s %s: %s", e.Type, shortKind(e.InvolvedObject.Kind), about, e.Reason,
		volume.MessageOf(e.Message, e.Annotations))
	if next := e.Annotations[volume.AnnNext]; next != "" {
		line += " (" + next + ")"
	}
	// The order in which workers run determines how often those that only call the API retry.
	if e.Count > 1 && (!c.works || c.driver != nil) {
		line += fmt.Sprintf(" ×%d", e.Count)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events[e.Name] = line
}

// happened returns what happened since the last command: the different requests that read, then in order the writes
// and calls, then the events.
func (c *Scene) happened() []string {
	now := c.inventory()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quiet {
		c.asked, c.events = nil, nil
		c.deeds = slices.DeleteFunc(c.deeds, func(d deed) bool { return d.about != aTable })
	}
	if c.unordered {
		slices.SortStableFunc(c.deeds, func(a, b deed) int {
			return cmp.Or(cmp.Compare(a.after, b.after), strings.Compare(a.about, b.about))
		})
	}
	lines := distinct(c.asked)
	for _, d := range c.deeds {
		if d.after > 0 && !c.together {
			d.lines[0] = d.after.String() + " later: " + d.lines[0]
		}
		lines = append(lines, d.lines...)
	}
	if now != c.had {
		lines, c.had = append(lines, now), now
	}
	lines = append(lines, distinct(slices.Collect(maps.Values(c.events)))...)
	c.notes = notes{since: time.Now(), events: map[string]string{}}
	for i := range lines {
		lines[i] = "  " + strings.ReplaceAll(lines[i], "\n", `\n`)
	}
	return lines
}

// distinct are the different lines, in order.
func distinct(lines []string) []string {
	slices.Sort(lines)
	return slices.Compact(lines)
}

// ending says how a request failed.
func ending(done bool, err error) string {
	switch reason := apierrors.ReasonForError(err); {
	case err == nil:
		return ""
	case done:
		return ", whose answer is lost"
	case reason == "":
		return ": " + err.Error()
	default:
		return ": " + string(reason)
	}
}
