package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
)

const (
	// maxBatch is how many bytes of intents one object takes; the API server
	// takes 1 MiB.
	maxBatch = 512 << 10
	// maxPause bounds how long a write waits for company.
	maxPause = 20 * time.Millisecond
	// crowd is how many open intents it takes for a write to wait at all.
	crowd = 8
	// maxObjects is how many objects a log has at most, so that a role can name
	// them all. When none is free, new intents join what is open in another one,
	// as far as maxFull.
	maxObjects = 16
	maxFull    = 960 << 10
)

// LogPlace says where a log of intents is: its objects are NAME-1, NAME-2 and
// so on, in Namespace, with Name as the value of their label.
type LogPlace struct{ Namespace, Name string }

// object returns the name of the log's nth object, from 1.
func (p LogPlace) object(n int) string { return fmt.Sprintf("%s-%d", p.Name, n) }

// Access is what the log's writer does. It writes no other object than the
// log's; but who may make and list some ConfigMaps of a namespace may do so with
// all, for a role cannot tell by a label.
func (p LogPlace) Access() []Access {
	var names []string
	for n := range maxObjects {
		names = append(names, p.object(n+1))
	}
	return []Access{
		{Namespace: p.Namespace, Resource: "configmaps", Verbs: []string{"create", "list"}},
		{Namespace: p.Namespace, Resource: "configmaps", Names: names, Verbs: []string{"update", "delete"}},
	}
}

// IntentLog keeps what a process is about to do and must finish or undo after
// a crash, by key, in ConfigMaps. What is put in the same few milliseconds goes
// into one write, and an object whose intents are all resolved is written over
// by the next ones, so that many intents at once cost few writes. It has one
// writer; a second one is noticed by its writes and then the log is read again.
// It is safe for concurrent use.
type IntentLog struct {
	client kubernetes.Interface
	place  LogPlace

	mu      sync.Mutex
	loaded  bool
	entries map[string]*intent
	// segments are the objects, by name.
	segments map[string]*segment
	puts     Batch[putting]
}

type intent struct {
	value, segment string
	done           bool
}

// segment is one object. Intents that are done stay in it until it is written
// the next time.
type segment struct {
	object *corev1.ConfigMap
	open   int
	busy   bool
}

type putting struct{ key, value string }

// NewIntentLog returns the log of that place. Nothing is read or written yet.
func NewIntentLog(client kubernetes.Interface, place LogPlace) *IntentLog {
	l := &IntentLog{client: client, place: place, entries: map[string]*intent{}, segments: map[string]*segment{}}
	l.puts.Run, l.puts.Wait, l.puts.Fit = l.write, l.waitForCompany, fit
	return l
}

// Load reads the log and returns the keys of the intents in it that nobody has
// resolved. It reads only the first time, and again after a write whose outcome
// is not known.
func (l *IntentLog) Load(ctx context.Context) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loaded {
		return nil, nil
	}
	list, err := l.client.CoreV1().ConfigMaps(l.place.Namespace).List(ctx, metav1.ListOptions{LabelSelector: volume.LabelIntents + "=" + l.place.Name})
	if err != nil {
		return nil, fmt.Errorf("read intents %s/%s: %w", l.place.Namespace, l.place.Name, err)
	}
	entries, segments := map[string]*intent{}, map[string]*segment{}
	for i := range list.Items {
		o := &list.Items[i]
		s := &segment{object: o}
		segments[o.Name] = s
		for key, value := range o.Data {
			before := l.entries[key]
			entries[key] = &intent{value: value, segment: o.Name, done: before != nil && before.done}
			if !entries[key].done {
				s.open++
			}
		}
	}
	l.entries, l.segments, l.loaded = entries, segments, true
	var open []string
	for key, e := range entries {
		if !e.done {
			open = append(open, key)
		}
	}
	slices.Sort(open)
	return open, nil
}

// Get returns the intent under a key, unless it is resolved. The log must be
// loaded.
func (l *IntentLog) Get(key string) (value string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[key]
	if e == nil || e.done {
		return "", false
	}
	return e.value, true
}

// Open returns the intents that are not resolved. The log must be loaded.
func (l *IntentLog) Open() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var open []string
	for _, e := range l.entries {
		if !e.done {
			open = append(open, e.value)
		}
	}
	return open
}

// Done resolves an intent. On the server it stands until its object is written
// again or swept. It may be repeated.
func (l *IntentLog) Done(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[key]
	if e == nil || e.done {
		return
	}
	e.done = true
	if s := l.segments[e.segment]; s != nil {
		s.open--
	}
}

// Holds says whether an intent may stand on the server, resolved or not.
func (l *IntentLog) Holds(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entries[key] != nil
}

// Put returns when the intent is on the server's disk. After an error it may
// be there or not; Load tells.
func (l *IntentLog) Put(ctx context.Context, key, value string) error {
	return l.puts.Do(ctx, putting{key: key, value: value})
}

// waitForCompany waits a little when much is under way: others will come.
func (l *IntentLog) waitForCompany(ctx context.Context) {
	l.mu.Lock()
	open := 0
	for _, s := range l.segments {
		open += s.open
	}
	l.mu.Unlock()
	if open < crowd {
		return
	}
	wait := time.NewTimer(min(maxPause, time.Duration(open)*time.Millisecond/4))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}

// fit returns how many intents go into one object.
func fit(all []putting) int {
	size := 0
	for n, p := range all {
		if size += len(p.key) + len(p.value); n > 0 && size > maxBatch {
			return n
		}
	}
	return len(all)
}

func (l *IntentLog) write(ctx context.Context, batch []putting) error {
	s, o, err := l.take(batch)
	if err != nil {
		return err
	}
	var got *corev1.ConfigMap
	if s.object == nil {
		got, err = l.client.CoreV1().ConfigMaps(l.place.Namespace).Create(ctx, o, metav1.CreateOptions{})
	} else {
		got, err = l.client.CoreV1().ConfigMaps(l.place.Namespace).Update(ctx, o, metav1.UpdateOptions{})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.busy = false
	if err != nil {
		// It may have been written, or somebody else writes: only reading
		// tells.
		l.loaded = false
		return fmt.Errorf("write intents %s: %w", o.Name, err)
	}
	for _, p := range batch {
		l.entries[p.key] = &intent{value: p.value, segment: o.Name}
	}
	s.object, s.open = got, 0
	maps.DeleteFunc(l.entries, func(key string, e *intent) bool {
		if e.segment != o.Name {
			return false
		}
		_, stands := o.Data[key]
		if stands && !e.done {
			s.open++
		}
		return !stands
	})
	l.segments[o.Name] = s
	return nil
}

// take returns an object with the batch in it, which the caller has for itself:
// one whose intents are all resolved, or a new one, or, if the log may have no
// more, the one with the least that is open.
func (l *IntentLog) take(batch []putting) (*segment, *corev1.ConfigMap, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded {
		return nil, nil, fmt.Errorf("intents %s have to be read first", l.place.Name)
	}
	s, o := l.free()
	if s == nil {
		s, o = l.least(batch)
	}
	if s == nil {
		return nil, nil, fmt.Errorf("intents %s: %d objects are full: others have to be resolved first", l.place.Name, maxObjects)
	}
	s.busy = true
	for _, p := range batch {
		o.Data[p.key] = p.value
	}
	return s, o, nil
}

// free returns an object whose intents are all resolved, or a new one, without
// data; nil is none.
func (l *IntentLog) free() (*segment, *corev1.ConfigMap) {
	for _, name := range slices.Sorted(maps.Keys(l.segments)) {
		if s := l.segments[name]; s.open == 0 && !s.busy {
			o := s.object.DeepCopy()
			o.Data = map[string]string{}
			return s, o
		}
	}
	for n := range maxObjects {
		name := l.place.object(n + 1)
		if l.segments[name] == nil {
			return &segment{}, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: l.place.Namespace, Name: name, Labels: map[string]string{volume.LabelIntents: l.place.Name}},
				Data:       map[string]string{},
			}
		}
	}
	return nil, nil
}

// least returns the object with the fewest bytes of open intents, and only them
// in it, unless the batch is too large for it; nil is none.
func (l *IntentLog) least(batch []putting) (*segment, *corev1.ConfigMap) {
	left := map[string]map[string]string{}
	for key, e := range l.entries {
		if e.done {
			continue
		}
		if left[e.segment] == nil {
			left[e.segment] = map[string]string{}
		}
		left[e.segment][key] = e.value
	}
	best, room := "", maxFull
	for _, p := range batch {
		room -= len(p.key) + len(p.value)
	}
	for _, name := range slices.Sorted(maps.Keys(l.segments)) {
		size := 0
		for key, value := range left[name] {
			size += len(key) + len(value)
		}
		if !l.segments[name].busy && size <= room {
			best, room = name, size-1
		}
	}
	if best == "" {
		return nil, nil
	}
	o := l.segments[best].object.DeepCopy()
	o.Data = left[best]
	return l.segments[best], o
}

// Sweep takes all resolved intents off the server.
func (l *IntentLog) Sweep(ctx context.Context) error {
	for {
		s, left := l.dirty()
		if s == nil {
			return nil
		}
		if err := l.clean(ctx, s, left); err != nil {
			return err
		}
	}
}

// dirty returns an object that holds resolved intents, and what is to be left
// of it; nil is none. The caller has it for itself until clean.
func (l *IntentLog) dirty() (*segment, map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded {
		return nil, nil
	}
	for _, s := range l.segments {
		if s.busy || s.open == len(s.object.Data) {
			continue
		}
		s.busy = true
		left := map[string]string{}
		for key, value := range s.object.Data {
			if e := l.entries[key]; e != nil && !e.done {
				left[key] = value
			}
		}
		return s, left
	}
	return nil, nil
}

func (l *IntentLog) clean(ctx context.Context, s *segment, left map[string]string) error {
	objects := l.client.CoreV1().ConfigMaps(l.place.Namespace)
	var got *corev1.ConfigMap
	var err error
	if len(left) == 0 {
		err = objects.Delete(ctx, s.object.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &s.object.UID, ResourceVersion: &s.object.ResourceVersion},
		})
		if apierrors.IsNotFound(err) {
			err = nil
		}
	} else {
		o := s.object.DeepCopy()
		o.Data = left
		got, err = objects.Update(ctx, o, metav1.UpdateOptions{})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.busy = false
	if err != nil {
		l.loaded = false
		return fmt.Errorf("sweep intents %s: %w", s.object.Name, err)
	}
	name := s.object.Name
	maps.DeleteFunc(l.entries, func(key string, e *intent) bool { return e.segment == name && left[key] == "" })
	if s.object = got; got == nil {
		delete(l.segments, name)
	}
	return nil
}
