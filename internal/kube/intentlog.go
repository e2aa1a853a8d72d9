package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
)

const (
	// maxWait is the longest time that a write waits for other intents to join it.
	maxWait = 20 * time.Millisecond
	// minOpenToWait is how many intents must be unresolved for a write to wait at all.
	minOpenToWait = 8
	// maxObjects is the maximum number of objects of a log: a role has to list all their names. If no object is free, new
	// intents join the unresolved ones of another object, up to the limit of its kind.
	maxObjects = 16
)

// LogPlace names the objects of an intent log: they are in Namespace and called NAME-1, NAME-2
// and so on, with Name as the value of their label. They are ConfigMaps, or Leases.
type LogPlace struct {
	Namespace, Name string
	InLeases        bool
	// InMemory says that the process may write neither, so that the log ends with it.
	InMemory bool
}

// limits returns how many bytes of intents are put into one object by one write, and how many it may have. The API
// server accepts objects up to 1 MiB, and annotations up to 256 KiB with the escapes of JSON.
func (p LogPlace) limits() (batch, full int) {
	if p.InLeases {
		return 64 << 10, 128 << 10
	}
	return 512 << 10, 960 << 10
}

// resource returns the group and the resource of the log's objects.
func (p LogPlace) resource() (group, resource string) {
	if p.InLeases {
		return "coordination.k8s.io", "leases"
	}
	return "", "configmaps"
}

// objects returns the names of the log's objects.
func (p LogPlace) objects() []string {
	var names []string
	for n := range maxObjects {
		names = append(names, fmt.Sprintf("%s-%d", p.Name, n+1))
	}
	return names
}

// has says whether an object with the log's label is one of its own: other objects have names that no writer of the log
// uses.
func (p LogPlace) has(o *corev1.ConfigMap) bool { return slices.Contains(p.objects(), o.Name) }

// Access returns the rights that the log's writer needs. It writes no other objects than the log's. But RBAC cannot
// restrict create and list by name or label: these two rights extend to all objects of the kind in the namespace.
func (p LogPlace) Access() []Access {
	if p.InMemory {
		return nil
	}
	names := p.objects()
	group, resource := p.resource()
	return []Access{
		{Namespace: p.Namespace, Group: group, Resource: resource, Verbs: []string{"create", "list"}},
		Access{
			Namespace: p.Namespace, Group: group, Resource: resource, Names: names, Verbs: []string{"update", "delete"},
		}.Only("data", Annotation(volume.AnnIntents), Annotation(volume.AnnIntentsAfter)),
	}
}

// IntentLog keeps, by key, what a process is about to do and must finish or undo after a crash. The intents are stored
// in ConfigMaps or Leases. Intents that are put within a few milliseconds share one write, and the write of new intents
// replaces an object whose intents are all resolved, so many concurrent intents cost few writes. The log has one
// writer. The writes of a second one are noticed as conflicts, and the log is read again. It is safe for concurrent
// use.
//
// A key is in one object at most: a key that is in some object already, resolved or not, is written to that object. So
// an old value can never survive a newer one, whichever write is the last before a crash.
type IntentLog struct {
	sheets sheets
	place  LogPlace
	puts   Batch[putRequest]

	// ioMu serializes reads and writes of the objects, so either the fields below equal the server's state, or loaded is
	// false.
	ioMu sync.Mutex

	// mu guards the fields below. It is not held during requests.
	mu sync.Mutex
	// loaded says whether the fields below equal the server's state.
	loaded bool
	// entries holds the intents on the server, by key.
	entries map[string]*intent
	// objects holds the log's objects on the server, by name, without their data.
	objects map[string]*corev1.ConfigMap
	// unconfirmed holds, by key, the values of a write that is in flight or has an unknown outcome.
	unconfirmed map[string]string
	// pending holds, by name, the objects that a write of unknown outcome may still change, in
	// their state before that write; nil if the write creates the object.
	pending map[string]*corev1.ConfigMap
	// fences holds the names of objects that are not deleted until the process ends, because a pending write would create
	// them again.
	fences map[string]bool
}

// intent is an intent on the server. A resolved one stays there until its object is written the next time.
type intent struct {
	value string
	// object is the name of the object that has the intent.
	object   string
	resolved bool
}

type putRequest struct{ key, value string }

func (p putRequest) size() int { return len(p.key) + len(p.value) }

// NewIntentLog returns the log at place. It sends no request.
func NewIntentLog(client kubernetes.Interface, place LogPlace) *IntentLog {
	l := &IntentLog{
		sheets: place.sheets(client), place: place, entries: map[string]*intent{}, objects: map[string]*corev1.ConfigMap{},
		unconfirmed: map[string]string{}, pending: map[string]*corev1.ConfigMap{}, fences: map[string]bool{},
	}
	l.puts.Run, l.puts.Wait, l.puts.Fit = l.write, l.waitForMore, l.countFitting
	return l
}

// Get returns the unresolved intent with the key. The log must have been loaded.
func (l *IntentLog) Get(key string) (value string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[key]
	if e == nil || e.resolved {
		return "", false
	}
	return e.value, true
}

// Open returns the values of all unresolved intents. The log must have been loaded.
func (l *IntentLog) Open() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var open []string
	for _, e := range l.entries {
		if !e.resolved {
			open = append(open, e.value)
		}
	}
	return open
}

// Done marks an intent as resolved. The intent stays on the server until its object is written or
// swept. Done may be repeated.
func (l *IntentLog) Done(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[key]; e != nil {
		e.resolved = true
	}
}

// Holds says whether the server may have an intent with the key, resolved or not. It returns true
// for any key while the log is not loaded.
func (l *IntentLog) Holds(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, coming := l.unconfirmed[key]
	return !l.loaded || coming || l.entries[key] != nil
}

// Put returns when the server has stored the intent. After an error the intent may be stored or not; Get shows it, once
// the log is loaded again. Put may be repeated.
func (l *IntentLog) Put(ctx context.Context, key, value string) error {
	return l.puts.Do(ctx, putRequest{key: key, value: value})
}

// waitForMore waits a little when many intents are unresolved: more will come soon.
func (l *IntentLog) waitForMore(ctx context.Context) {
	l.mu.Lock()
	open := 0
	for _, e := range l.entries {
		if !e.resolved {
			open++
		}
	}
	l.mu.Unlock()
	if open < minOpenToWait {
		return
	}
	select {
	case <-time.After(min(maxWait, time.Duration(open)*time.Millisecond/4)):
	case <-ctx.Done():
	}
}

// countFitting returns how many of the intents go into one write.
func (l *IntentLog) countFitting(all []putRequest) int {
	size := 0
	maxBatch, _ := l.place.limits()
	for n, p := range all {
		if size += p.size(); n > 0 && size > maxBatch {
			return n
		}
	}
	return len(all)
}

// write writes a batch. Keys that are in an object already stay in it; all new keys go into one object.
func (l *IntentLog) write(ctx context.Context, batch []putRequest) error {
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	for len(batch) > 0 {
		object := l.objectOf(batch[0].key)
		var together, rest []putRequest
		for _, p := range batch {
			if l.objectOf(p.key) == object {
				together = append(together, p)
			} else {
				rest = append(rest, p)
			}
		}
		name, err := l.choose(object, together)
		if err != nil {
			return err
		}
		if err := l.replace(ctx, name, together); err != nil {
			return err
		}
		batch = rest
	}
	return nil
}

// objectOf returns the name of the object that has a key, or "".
func (l *IntentLog) objectOf(key string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[key]; e != nil {
		return e.object
	}
	return ""
}

// choose returns the object that a batch is written to: the one that has its keys already; otherwise one without
// unresolved intents; or a new one; or, if the log has all its objects, the one with the fewest bytes of unresolved
// intents.
func (l *IntentLog) choose(object string, batch []putRequest) (name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded {
		return "", fmt.Errorf("intents %s have to be read first", l.place.Name)
	}
	open := l.openBytes()
	_, room := l.place.limits()
	for _, p := range batch {
		room -= p.size()
	}
	if object == "" {
		object = l.leastFull(open)
	}
	if open[object] > 0 && open[object] > room {
		return "", fmt.Errorf("intents %s: %d objects are full: other intents have to be resolved "+
			"first", l.place.Name, maxObjects)
	}
	return object, nil
}

// leastFull returns an existing object without unresolved intents, otherwise a new one, otherwise the one with the
// fewest bytes of unresolved intents.
func (l *IntentLog) leastFull(open map[string]int) string {
	rank := func(name string) int {
		if l.objects[name] == nil {
			return 1
		}
		return 2 * open[name]
	}
	return slices.MinFunc(l.place.objects(), func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
}

// openBytes returns the size in bytes of each object's unresolved intents.
func (l *IntentLog) openBytes() map[string]int {
	open := map[string]int{}
	for key, e := range l.entries {
		if !e.resolved {
			open[e.object] += len(key) + len(e.value)
		}
	}
	return open
}

// Sweep removes all resolved intents from the server. It writes each object at most once. It may be repeated.
func (l *IntentLog) Sweep(ctx context.Context) error {
	for _, name := range l.place.objects() {
		if err := l.sweep(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (l *IntentLog) sweep(ctx context.Context, name string) error {
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	if !l.dirty(name) {
		return nil
	}
	return l.replace(ctx, name, nil)
}

// dirty says whether an object has a resolved intent, or no intent at all.
func (l *IntentLog) dirty(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded || l.objects[name] == nil {
		return false
	}
	empty := true
	for _, e := range l.entries {
		if e.object != name {
			continue
		}
		if e.resolved {
			return true
		}
		empty = false
	}
	return empty && !l.fences[name]
}

// replace writes one object: its unresolved intents and a batch. The caller holds ioMu.
func (l *IntentLog) replace(ctx context.Context, name string, batch []putRequest) error {
	before, data := l.prepare(name, batch)
	var after *corev1.ConfigMap
	var err error
	switch {
	case before == nil:
		after, err = l.sheets.Create(ctx, l.newObject(name, data), metav1.CreateOptions{})
	case len(data) == 0 && !l.fenced(name):
		err = l.sheets.Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &before.UID, ResourceVersion: &before.ResourceVersion},
		})
	default:
		o := before.DeepCopy()
		o.Data = data
		// Each write must change the object, so that the server refuses an earlier write that arrives later.
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, volume.AnnIntentsAfter, before.ResourceVersion)
		after, err = l.sheets.Update(ctx, o, metav1.UpdateOptions{})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		// The write may have taken effect, or there is another writer: the log must be read again.
		l.loaded = false
		if !isRefusal(err) {
			l.pending[name] = before
		}
		return fmt.Errorf("write intents %s: %w", name, err)
	}
	l.recordWrite(name, after, data, batch)
	return nil
}

// prepare marks the values of a batch as unconfirmed and returns the object to be written and its new data.
func (l *IntentLog) prepare(name string, batch []putRequest) (before *corev1.ConfigMap, data map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	data = map[string]string{}
	for key, e := range l.entries {
		if e.object == name && !e.resolved {
			data[key] = e.value
		}
	}
	for _, p := range batch {
		data[p.key] = p.value
		l.unconfirmed[p.key] = p.value
	}
	return l.objects[name], data
}

// recordWrite stores the result of a write; after is nil if the object was deleted.
func (l *IntentLog) recordWrite(name string, after *corev1.ConfigMap, data map[string]string, batch []putRequest) {
	maps.DeleteFunc(l.entries, func(key string, e *intent) bool {
		_, stands := data[key]
		return e.object == name && !stands
	})
	for _, p := range batch {
		l.entries[p.key] = &intent{value: data[p.key], object: name}
		delete(l.unconfirmed, p.key)
	}
	l.remember(name, after)
}

func (l *IntentLog) remember(name string, o *corev1.ConfigMap) {
	if o == nil {
		delete(l.objects, name)
		return
	}
	o.Data, o.ManagedFields = nil, nil
	l.objects[name] = o
}

func (l *IntentLog) fenced(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fences[name]
}

func (l *IntentLog) newObject(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.place.Namespace, Name: name, Labels: map[string]string{volume.LabelIntents: l.place.Name},
		},
		Data: data,
	}
}
