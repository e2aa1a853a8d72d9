package story

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// Scene is an API and the controllers that follow each other over it.
type Scene struct {
	testing.TB
	API *kubetest.API

	script *script
	cast   Cast
	life   *kubetest.Process
	// mu guards the rest.
	mu    sync.Mutex
	rules []*rule
	// reads says that the caches have listed what they follow: each later read is one of the API itself.
	reads bool
	// asked, done and told are the read requests, the writes and the events since the last expect.
	asked []string
	done  []deed
	told  []string
	// writes are all that were done.
	writes []string
}

// deed is a line about an object, and lines below it.
type deed struct{ about, text string }

func newScene(t *testing.T, s *script) *Scene {
	c := &Scene{TB: t, API: kubetest.NewAPI(t), script: s}
	c.API.Fate, c.API.Seen = c.fate, c.seen
	c.API.PrependReactor("get", "*", c.read)
	c.API.PrependReactor("list", "*", c.read)
	return c
}

// Note adds a line to what the controller has done, for example a call of its driver.
func (c *Scene) Note(line string) { c.note(deed{line, line + "\n"}) }

func (c *Scene) note(d deed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = append(c.done, d)
}

// seen notes a write or an event.
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
	if !apierrors.IsConflict(w.Err) {
		c.note(deed{object, line + ending(w.Done, w.Err) + "\n" + changes(w)})
	}
	if w.Done {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.writes = append(c.writes, line)
	}
}

func (c *Scene) hear(e *corev1.Event) {
	about := strings.Trim(e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "/")
	line := fmt.Sprintf("%s %s/%s %s: %s", e.Type, shortKind(e.InvolvedObject.Kind), about, e.Reason,
		volume.MessageOf(e.Message, e.Annotations))
	if next := e.Annotations[volume.AnnNext]; next != "" {
		line += " (" + next + ")"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, line)
}

// take returns the read requests, writes and events since it was called last.
func (c *Scene) take(anyOrder bool) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if anyOrder {
		slices.SortStableFunc(c.done, func(a, b deed) int { return strings.Compare(a.about, b.about) })
	}
	out := distinct(c.asked)
	for _, d := range c.done {
		out += d.text
	}
	out += distinct(c.told)
	c.asked, c.done, c.told = nil, nil, nil
	return out
}

// distinct are the different lines, in order.
func distinct(lines []string) string {
	var out strings.Builder
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) {
		out.WriteString(line + "\n")
	}
	return out.String()
}

// ending says how a request failed.
func ending(done bool, err error) string {
	switch {
	case err == nil:
		return ""
	case done:
		return ", whose answer is lost"
	}
	return ": " + string(apierrors.ReasonForError(err))
}
