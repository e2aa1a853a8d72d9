package drivertest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// object names an object.
type object struct {
	resource schema.GroupVersionResource
	name     string
}

// noted is something that happened: one line, and lines below it.
type noted struct {
	after time.Duration
	lines []string
}

// notes are what happened since the last line of a script.
type notes struct {
	// since is when the last line was done.
	since time.Time
	lines []noted
	wrote []object
	// known are the objects as they were after the last line.
	known map[object]runtime.Object
	// had is the driver's inventory after the last line.
	had string
	// told are how often events were counted until the last line.
	told map[string]int32
}

func newNotes() notes {
	return notes{since: time.Now(), known: map[object]runtime.Object{}, told: map[string]int32{}}
}

// note notes what happens: a line, and lines below it.
func (s *stage) note(lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, noted{time.Since(s.since), lines})
}

// noted returns what was noted since the last line of the script, in order; what workers do at the same time is sorted.
func (s *stage) noted() (lines []string, wrote []object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.works {
		slices.SortStableFunc(s.lines, func(a, b noted) int {
			return cmp.Or(cmp.Compare(a.after, b.after), slices.Compare(a.lines, b.lines))
		})
	}
	for _, n := range s.lines {
		if n.after > 0 {
			n.lines[0] = n.after.String() + " later: " + n.lines[0]
		}
		lines = append(lines, n.lines...)
	}
	wrote = s.wrote
	s.lines, s.wrote, s.since = nil, nil, time.Now()
	return lines, wrote
}

// noteWrite notes a write, "VERB RESOURCE NAME".
func (s *stage) noteWrite(what string) {
	words := strings.Fields(what)
	resource, _, _ := strings.Cut(words[1], "/")
	if s.works && resource == s.Lazy {
		return
	}
	s.note(what)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range resources() {
		if r.Resource == resource {
			s.wrote = append(s.wrote, object{r, words[2]})
		}
	}
}

// resources are those that controllers of volumes write.
func resources() []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for kind := range scheme.Scheme.AllKnownTypes() {
		if kind.Version == "v1" && (kind.Group == "" || kind.Group == "storage.k8s.io") {
			r, _ := meta.UnsafeGuessKindToResource(kind)
			all = append(all, r)
		}
	}
	for _, kind := range kubetest.NewScheme().Custom() {
		r, _ := meta.UnsafeGuessKindToResource(kind)
		all = append(all, r)
	}
	return all
}

// noteCall notes a call, with what differs from the usual request.
func (s *stage) noteCall(t testing.TB, method string, usual, request proto.Message) {
	lines := []string{method}
	if usual == nil {
		text, _ := json.Marshal(inJSON(request))
		lines[0] += " " + string(text)
	} else {
		lines = append(lines, split(golden.Change(t, inJSON(usual), inJSON(request)))...)
	}
	s.note(lines...)
}

// inJSON is a message as golden.Change and json.Marshal take it.
func inJSON(m proto.Message) json.RawMessage {
	text, err := protojson.Marshal(m)
	if err != nil {
		panic(err) // a message that was received can be encoded
	}
	return text
}

func split(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// remember takes objects as known, so that only later changes of them are shown.
func (s *stage) remember(all ...runtime.Object) {
	for _, o := range all {
		s.refresh(objectOf(o))
	}
}

// refresh takes an object as known as it is now.
func (s *stage) refresh(of object) {
	now := s.now(of)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[of] = now; now == nil {
		delete(s.known, of)
	}
}

// now returns an object as it is now, without what differs from one test to the next.
func (s *stage) now(of object) runtime.Object {
	namespace, name, ok := strings.Cut(of.name, "/")
	if !ok {
		namespace, name = "", of.name
	}
	o, err := s.api.Tracker().Get(of.resource, namespace, name)
	if err != nil {
		return nil
	}
	m := kubetest.MetaOf(o)
	if m.SetResourceVersion(""); strings.HasPrefix(string(m.GetUID()), "uid-") {
		m.SetUID(types.UID(""))
	}
	return o
}

func objectOf(o runtime.Object) object {
	return object{kubetest.ResourceOf(o), cluster.Key(kubetest.MetaOf(o))}
}

// happened returns what happened since the last line of the script: calls and writes in their order, what became of
// the objects, and events.
func (s *stage) happened() []string {
	lines, wrote := s.noted()
	slices.SortFunc(wrote, func(a, b object) int { return strings.Compare(a.String(), b.String()) })
	for _, o := range slices.Compact(wrote) {
		before := s.known[o]
		s.refresh(o)
		if now := s.known[o]; before != nil && now == nil {
			lines = append(lines, o.String()+" is gone")
		} else if change := s.change(before, now); len(change) > 0 {
			change[0] = o.String() + ":" + change[0]
			lines = append(lines, change...)
		}
	}
	if now := s.inventory(); now != s.had {
		lines, s.had = append(lines, now), now
	}
	lines = append(lines, s.events()...)
	for i := range lines {
		lines[i] = "  " + strings.ReplaceAll(lines[i], "\n", `\n`)
	}
	return lines
}

// change tells in lines what became of an object: on the first one the states that it came to, and below what else
// changed, except times.
func (s *stage) change(before, now runtime.Object) []string {
	first := ""
	if before == nil && now != nil {
		before, first = s.model(now)
	}
	lines := s.lasting(before, now)
	if len(lines) == 0 && first == "" {
		return nil
	}
	for _, state := range s.states(now) {
		missing := func(l string) bool { return !slices.Contains(lines, l) }
		if len(state.lines) > 0 && !slices.ContainsFunc(state.lines, missing) {
			first += " " + state.word
			lines = slices.DeleteFunc(lines, func(l string) bool { return slices.Contains(state.lines, l) })
		}
	}
	if len(lines) == 1 && first == "" {
		return []string{strings.TrimPrefix(lines[0], " ")}
	}
	return append([]string{first}, lines...)
}

// model returns the object that a new one is compared with: that of the script's kinds with its name, if there is one.
func (s *stage) model(o runtime.Object) (model runtime.Object, word string) {
	for _, name := range slices.Sorted(maps.Keys(s.Kinds)) {
		if model := s.Kinds[name].make(s, nil); objectOf(model) == objectOf(o) {
			return model, " new " + name
		}
	}
	return nil, ""
}

// lasting tells in lines what became of an object, except times.
func (s *stage) lasting(before, now runtime.Object) []string {
	return slices.DeleteFunc(split(golden.Change(s, before, now)), func(line string) bool {
		path, _, _ := strings.Cut(line, ": ")
		return strings.HasSuffix(strings.ToLower(path), "time")
	})
}

// state is what changes of an object that comes to a state.
type state struct {
	word  string
	lines []string
}

// states returns the states of objects like o, first those that change most.
func (s *stage) states(o runtime.Object) []state {
	var all []state
	for _, kind := range s.Kinds {
		base := kind.make(s, nil)
		if reflect.TypeOf(base) != reflect.TypeOf(o) {
			continue
		}
		for _, word := range kind.states {
			changed := kind.make(s, []string{word})
			all = append(all, state{word, s.lasting(base, changed)}, state{"no longer " + word, s.lasting(changed, base)})
		}
	}
	slices.SortStableFunc(all, func(a, b state) int { return len(b.lines) - len(a.lines) })
	return all
}

// String returns the object as a script shows it.
func (o object) String() string { return o.resource.Resource + " " + o.name }

// events returns the events that were counted since the last time, sorted.
func (s *stage) events() []string {
	all, err := s.api.CoreV1().Events("").List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	var out []string
	for i := range all.Items {
		e := &all.Items[i]
		if s.told[e.Name] != e.Count {
			out = append(out, said(e))
		}
		s.told[e.Name] = e.Count
	}
	slices.Sort(out)
	return out
}

func said(e *corev1.Event) string {
	text := fmt.Sprintf("%s %s %s: %s: %s", e.Type, strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name,
		e.Reason, volume.MessageOf(e.Message, e.Annotations))
	if next := e.Annotations[volume.AnnNext]; next != "" {
		text += " -> " + next
	}
	if e.Count > 1 {
		text += fmt.Sprintf(" (%d)", e.Count)
	}
	return text
}
