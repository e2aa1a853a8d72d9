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

// objects returns the names of the log's objects.
func (p LogPlace) objects() []string {
	var names []string
	for n := range maxObjects {
		names = append(names, fmt.Sprintf("%s-%d", p.Name, n+1))
	}
	return names
}

// Access is what the log's writer does. It writes no other object than the
// log's; but who may make and list some ConfigMaps of a namespace may do so with
// all, for a role cannot tell by a label.
func (p LogPlace) Access() []Access {
	names := p.objects()
	return []Access{
		{Namespace: p.Namespace, Resource: "configmaps", Verbs: []string{"create", "list"}},
		Access{Namespace: p.Namespace, Resource: "configmaps", Names: names, Verbs: []string{"update", "delete"}}.
			Only("data", Annotation(volume.AnnIntentsAfter)),
	}
}

// IntentLog keeps what a process is about to do and must finish or undo after
// a crash, by key, in ConfigMaps. What is put in the same few milliseconds goes
// into one write, and an object whose intents are all resolved is written over
// by the next ones, so that many intents at once cost few writes. It has one
// writer; a second one is noticed by its writes and then the log is read again.
// It is safe for concurrent use.
//
// A key stands in one object at most: one that stands anywhere is put again
// where it stands, resolved or not. So an older value cannot outlive a newer one,
// whichever write is the last before a crash.
type IntentLog struct {
	client kubernetes.Interface
	place  LogPlace
	puts   Batch[putting]

	// turn is held by who reads or writes objects: one at a time, so that what
	// is known of them is what the server has, or else the log is not loaded.
	turn sync.Mutex

	// mu guards what follows. It is not held while the server is asked.
	mu      sync.Mutex
	loaded  bool
	entries map[string]*intent
	// objects are those on the server, by name, without their data.
	objects map[string]*corev1.ConfigMap
	// lost are the values of a write that is under way, or whose outcome is not
	// known.
	lost map[string]string
	// late are the objects to which a write of ours may still come, as they were
	// when it was made; nil is an object that there was not.
	late map[string]*corev1.ConfigMap
	// fences are objects that stay until the process ends, because a write that
	// would make them again may still come.
	fences map[string]bool
}

// intent is one that stands on the server, in the object of that name. One that
// is done stands until its object is written the next time.
type intent struct {
	value, object string
	done          bool
}

type putting struct{ key, value string }

func (p putting) size() int { return len(p.key) + len(p.value) }

// NewIntentLog returns the log of that place. Nothing is read or written yet.
func NewIntentLog(client kubernetes.Interface, place LogPlace) *IntentLog {
	l := &IntentLog{
		client: client, place: place, entries: map[string]*intent{}, objects: map[string]*corev1.ConfigMap{},
		lost: map[string]string{}, late: map[string]*corev1.ConfigMap{}, fences: map[string]bool{},
	}
	l.puts.Run, l.puts.Wait, l.puts.Fit = l.write, l.waitForCompany, fit
	return l
}

// Get returns the intent under a key, unless it is resolved. The log must have
// been loaded.
func (l *IntentLog) Get(key string) (value string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[key]
	if e == nil || e.done {
		return "", false
	}
	return e.value, true
}

// Open returns the intents that are not resolved. The log must have been
// loaded.
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
	if e := l.entries[key]; e != nil {
		e.done = true
	}
}

// Holds says whether an intent may stand on the server, resolved or not: of a
// log that has to be read, any may.
func (l *IntentLog) Holds(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, coming := l.lost[key]
	return !l.loaded || coming || l.entries[key] != nil
}

// Put returns when the intent is on the server's disk. After an error it may
// be there or not; Get tells, once the log is loaded again.
func (l *IntentLog) Put(ctx context.Context, key, value string) error {
	return l.puts.Do(ctx, putting{key: key, value: value})
}

// waitForCompany waits a little when much is under way: others will come.
func (l *IntentLog) waitForCompany(ctx context.Context) {
	l.mu.Lock()
	open := 0
	for _, e := range l.entries {
		if !e.done {
			open++
		}
	}
	l.mu.Unlock()
	if open < crowd {
		return
	}
	select {
	case <-time.After(min(maxPause, time.Duration(open)*time.Millisecond/4)):
	case <-ctx.Done():
	}
}

// fit returns how many intents go into one object.
func fit(all []putting) int {
	size := 0
	for n, p := range all {
		if size += p.size(); n > 0 && size > maxBatch {
			return n
		}
	}
	return len(all)
}

// write puts a batch: what stands somewhere there, all that is new into one
// object.
func (l *IntentLog) write(ctx context.Context, batch []putting) error {
	l.turn.Lock()
	defer l.turn.Unlock()
	for len(batch) > 0 {
		home := l.home(batch[0].key)
		var together, rest []putting
		for _, p := range batch {
			if l.home(p.key) == home {
				together = append(together, p)
			} else {
				rest = append(rest, p)
			}
		}
		name, err := l.choose(home, together)
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

// home returns the name of the object that a key stands in; "" is none.
func (l *IntentLog) home(key string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[key]; e != nil {
		return e.object
	}
	return ""
}

// choose returns the object that is to take a batch: the one that its keys stand
// in, or else one whose intents are all resolved, or a new one, or, if the log
// may have no more, the one with the fewest bytes of open intents.
func (l *IntentLog) choose(home string, batch []putting) (name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded {
		return "", fmt.Errorf("intents %s have to be read first", l.place.Name)
	}
	open, room := l.openBytes(), maxFull
	for _, p := range batch {
		room -= p.size()
	}
	if home == "" {
		home = l.emptiest(open)
	}
	if open[home] > 0 && open[home] > room {
		return "", fmt.Errorf("intents %s: %d objects are full: others have to be resolved first", l.place.Name, maxObjects)
	}
	return home, nil
}

// emptiest returns an object with nothing open, one that there was before a new
// one, or else the one with the fewest bytes.
func (l *IntentLog) emptiest(open map[string]int) string {
	rank := func(name string) int {
		if l.objects[name] == nil {
			return 1
		}
		return 2 * open[name]
	}
	return slices.MinFunc(l.place.objects(), func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
}

// openBytes returns how many bytes of open intents each object has.
func (l *IntentLog) openBytes() map[string]int {
	open := map[string]int{}
	for key, e := range l.entries {
		if !e.done {
			open[e.object] += len(key) + len(e.value)
		}
	}
	return open
}

// Sweep takes all resolved intents off the server. It writes each object once
// at most.
func (l *IntentLog) Sweep(ctx context.Context) error {
	for _, name := range l.place.objects() {
		if err := l.sweep(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (l *IntentLog) sweep(ctx context.Context, name string) error {
	l.turn.Lock()
	defer l.turn.Unlock()
	if !l.dirty(name) {
		return nil
	}
	return l.replace(ctx, name, nil)
}

// dirty says whether an object has something resolved in it, or nothing at all.
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
		if e.done {
			return true
		}
		empty = false
	}
	return empty && !l.fences[name]
}

// replace writes one object: the intents in it that are open, and a batch. The
// caller has the turn.
func (l *IntentLog) replace(ctx context.Context, name string, batch []putting) error {
	before, data := l.begin(name, batch)
	objects := l.client.CoreV1().ConfigMaps(l.place.Namespace)
	var after *corev1.ConfigMap
	var err error
	switch {
	case before == nil:
		after, err = objects.Create(ctx, l.object(name, data), metav1.CreateOptions{})
	case len(data) == 0 && !l.fenced(name):
		err = objects.Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &before.UID, ResourceVersion: &before.ResourceVersion},
		})
	default:
		o := before.DeepCopy()
		o.Data = data
		if o.Annotations == nil {
			o.Annotations = map[string]string{}
		}
		// Each write changes the object, or it would not keep one that was made
		// earlier from coming after it.
		o.Annotations[volume.AnnIntentsAfter] = before.ResourceVersion
		after, err = objects.Update(ctx, o, metav1.UpdateOptions{})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		// It may have been written, or somebody else writes: only reading
		// tells.
		l.loaded = false
		if !refused(err) {
			l.late[name] = before
		}
		return fmt.Errorf("write intents %s: %w", name, err)
	}
	l.wrote(name, after, data, batch)
	return nil
}

// begin notes that a batch is on its way to an object, and returns the object
// and what its data are to be.
func (l *IntentLog) begin(name string, batch []putting) (before *corev1.ConfigMap, data map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	data = map[string]string{}
	for key, e := range l.entries {
		if e.object == name && !e.done {
			data[key] = e.value
		}
	}
	for _, p := range batch {
		data[p.key] = p.value
		l.lost[p.key] = p.value
	}
	return l.objects[name], data
}

// wrote notes what an object is now; nil is gone.
func (l *IntentLog) wrote(name string, after *corev1.ConfigMap, data map[string]string, batch []putting) {
	maps.DeleteFunc(l.entries, func(key string, e *intent) bool {
		_, stands := data[key]
		return e.object == name && !stands
	})
	for _, p := range batch {
		l.entries[p.key] = &intent{value: data[p.key], object: name}
		delete(l.lost, p.key)
	}
	l.keep(name, after)
}

func (l *IntentLog) keep(name string, o *corev1.ConfigMap) {
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

func (l *IntentLog) object(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.place.Namespace, Name: name, Labels: map[string]string{volume.LabelIntents: l.place.Name},
		},
		Data: data,
	}
}
