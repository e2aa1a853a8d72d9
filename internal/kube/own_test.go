package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/cluster"
)

// model is a Writer over an API server whose watch is late, whose answers come late
// or never, and on which others write, too.
type model struct {
	*rapid.T
	store  *store[*storagev1.VolumeAttachment]
	writer Writer[*storagev1.VolumeAttachment]

	// The server: what exists, all that has happened, and each version.
	rev      int
	there    map[string]*storagev1.VolumeAttachment
	events   []watch.Event
	versions map[string]*storagev1.VolumeAttachment
	// told is how many of the events the watch has reported.
	told  int
	depth int

	// What this process has learned, by uid: the newest version, from the watch or an
	// answer; that it is being deleted, from an answer; and that it is gone.
	newest      map[types.UID]int
	going, dead map[types.UID]bool
	// shown is the state that listeners have received, seen what was ever read, and parted
	// what BeforeDelete was called with.
	shown        map[string]*storagev1.VolumeAttachment
	seen, parted map[types.UID]bool
	// heard is what was reported to listeners, passed what need not be.
	heard, passed map[types.UID]bool
}

func newModel(t *rapid.T) *model {
	s := newStore(cluster.AttachmentIndexers(), new(Trimmer).trim)
	m := &model{
		T: t, store: s, there: map[string]*storagev1.VolumeAttachment{}, versions: map[string]*storagev1.VolumeAttachment{},
		newest: map[types.UID]int{}, going: map[types.UID]bool{}, dead: map[types.UID]bool{},
		shown: map[string]*storagev1.VolumeAttachment{}, seen: map[types.UID]bool{}, parted: map[types.UID]bool{},
		heard: map[types.UID]bool{}, passed: map[types.UID]bool{},
	}
	c := &Cache[*storagev1.VolumeAttachment]{store: s}
	c.Watch(func(_, _ *storagev1.VolumeAttachment) {})
	s.listeners = c.listeners // what they receive stays in their queues, where hear reads it
	c.BeforeDelete(func(a *storagev1.VolumeAttachment) {
		if m.parted[a.UID] {
			t.Fatalf("%s has gone twice", a.UID)
		}
		m.parted[a.UID] = true
	})
	m.writer = Writer[*storagev1.VolumeAttachment]{
		c, "attachment", func(string) API[*storagev1.VolumeAttachment] { return m },
	}
	return m
}

// TestWriterModel: a reader of the cache gets the last state that the watch or an answer
// has reported, and never an object that is known to be gone; when the watch has caught
// up, the cache equals the server; and each object is reported to listeners once.
func TestWriterModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		actions := m.actions()
		actions[""] = func(*rapid.T) { m.check() }
		t.Repeat(actions)
		for m.told < len(m.events) {
			m.tell()
			m.check()
		}
		for uid := range m.seen {
			if !m.heard[uid] && !m.passed[uid] {
				t.Fatalf("%s was read, and listeners never heard of it", uid)
			}
		}
		if len(m.store.overlays) > 0 {
			t.Fatalf("own writes are left: %v", m.store.overlays)
		}
		for _, got := range []map[string]*storagev1.VolumeAttachment{m.store.objects, m.shown} {
			if !maps.EqualFunc(got, m.there, func(a, b *storagev1.VolumeAttachment) bool {
				return a.ResourceVersion == b.ResourceVersion
			}) {
				t.Fatalf("at the end there is %v, want %v", names(got), names(m.there))
			}
		}
	})
}

func names(all map[string]*storagev1.VolumeAttachment) (out []string) {
	for _, a := range all {
		out = append(out, string(a.UID)+"@"+a.ResourceVersion)
	}
	slices.Sort(out)
	return out
}

func (m *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"watch":   func(*rapid.T) { m.tell() },
		"relist":  func(*rapid.T) { m.relist() },
		"other":   func(*rapid.T) { m.other() },
		"create":  func(*rapid.T) { m.create() },
		"update":  func(*rapid.T) { m.change() },
		"delete":  func(*rapid.T) { m.remove() },
		"release": func(*rapid.T) { m.release() },
	}
}

// commit is a write on the server; DELETED is reported with the version of the deletion.
func (m *model) commit(kind watch.EventType, o *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	m.rev++
	o = o.DeepCopy()
	o.ResourceVersion = strconv.Itoa(m.rev)
	if m.there[o.Name] = o; kind == watch.Deleted {
		delete(m.there, o.Name)
	}
	m.events = append(m.events, watch.Event{Type: kind, Object: o})
	m.versions[o.ResourceVersion] = o
	return o
}

func (m *model) put(o *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	before, known := m.there[o.Name]
	switch {
	case !known:
		o = o.DeepCopy()
		o.UID = types.UID(fmt.Sprint(o.Name, m.rev+1))
		return m.commit(watch.Added, o)
	case before.DeletionTimestamp != nil && len(o.Finalizers) == 0:
		m.commit(watch.Deleted, before)
		o = o.DeepCopy()
		o.DeletionTimestamp, o.DeletionGracePeriodSeconds = before.DeletionTimestamp, ptr.To[int64](0)
		return o // in the version that was sent
	}
	o = o.DeepCopy()
	o.DeletionTimestamp, o.DeletionGracePeriodSeconds = before.DeletionTimestamp, before.DeletionGracePeriodSeconds
	return m.commit(watch.Modified, o)
}

func (m *model) drop(name string) {
	o := m.there[name].DeepCopy()
	switch {
	case len(o.Finalizers) == 0:
		m.commit(watch.Deleted, o)
	case o.DeletionTimestamp == nil:
		o.DeletionTimestamp, o.DeletionGracePeriodSeconds = &metav1.Time{}, ptr.To[int64](0)
		m.commit(watch.Modified, o)
	}
}

func (m *model) fresh() *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: rapid.SampledFrom([]string{"a", "b"}).Draw(m.T, "name")},
	}
	m.edit(a)
	return a
}

// edit changes what an object is found by, and whether it has a finalizer.
func (m *model) edit(a *storagev1.VolumeAttachment) {
	a.Spec.NodeName = rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(m.T, "node")
	if a.Finalizers = nil; rapid.Bool().Draw(m.T, "finalizer") {
		a.Finalizers = []string{"f"}
	}
}

// other is a write of another client.
func (m *model) other() {
	a := m.fresh()
	now, known := m.there[a.Name]
	if known && rapid.Bool().Draw(m.T, "drop") {
		m.drop(a.Name)
		return
	}
	if known {
		a.UID, a.ResourceVersion = now.UID, now.ResourceVersion
	}
	m.put(a)
}

// tell has the watch report the next event.
func (m *model) tell() {
	if m.told == len(m.events) {
		return
	}
	e := m.events[m.told]
	m.told++
	o := e.Object.(*storagev1.VolumeAttachment)
	m.know(o)
	f := reflectorStore[*storagev1.VolumeAttachment]{m.store}
	do := f.Update
	if e.Type == watch.Deleted {
		m.dead[o.UID] = true
		do = f.Delete
	}
	if err := do(o.DeepCopy()); err != nil {
		m.Fatal(err)
	}
}

// relist replaces everything by a list that is newer than the last event of the watch,
// and may be older than later changes.
func (m *model) relist() {
	m.told = rapid.IntRange(m.told, len(m.events)).Draw(m.T, "list")
	at, made := map[string]*storagev1.VolumeAttachment{}, map[types.UID]bool{}
	for _, e := range m.events[:m.told] {
		o := e.Object.(*storagev1.VolumeAttachment)
		made[o.UID] = true
		if at[o.Name] = o; e.Type == watch.Deleted {
			delete(at, o.Name)
		}
	}
	var list []any
	for _, o := range at {
		m.know(o)
		delete(made, o.UID)
		list = append(list, o.DeepCopy())
	}
	for uid := range made {
		m.dead[uid] = true
	}
	if err := (reflectorStore[*storagev1.VolumeAttachment]{m.store}).Replace(list, strconv.Itoa(m.told)); err != nil {
		m.Fatal(err)
	}
}

// know records that this process has learned of a version.
func (m *model) know(o *storagev1.VolumeAttachment) {
	m.newest[o.UID] = max(m.newest[o.UID], int(version(o)))
}

func (m *model) create() {
	o := m.fresh()
	if got, _, err := m.writer.Ensure(context.Background(), o); err == nil {
		m.know(got)
		for uid := range m.seen {
			// The answer shows that it is gone; listeners need not be notified.
			if uid != got.UID && strings.HasPrefix(string(uid), o.Name) {
				m.passed[uid] = true
			}
		}
	}
}

// read returns an object as the cache has it.
func (m *model) read() *storagev1.VolumeAttachment {
	a, ok := m.store.get(rapid.SampledFrom([]string{"a", "b"}).Draw(m.T, "read"))
	if !ok {
		return nil
	}
	return a.DeepCopy()
}

func (m *model) change() {
	if a := m.read(); a != nil {
		m.edit(a)
		m.write(a)
	}
}

// release takes the finalizer away.
func (m *model) release() {
	if a := m.read(); a != nil {
		a.Finalizers = nil
		m.write(a)
	}
}

func (m *model) write(a *storagev1.VolumeAttachment) {
	got, err := m.writer.Update(context.Background(), a)
	switch {
	case err != nil:
	case got.DeletionTimestamp != nil && len(got.Finalizers) == 0:
		m.dead[got.UID] = true
	default:
		m.know(got)
	}
}

func (m *model) remove() {
	a := m.read()
	if a != nil && m.writer.Delete(context.Background(), a, metav1.DeleteOptions{}) == nil {
		m.going[a.UID] = true
	}
}

// answer does a write, or not, lets other things happen, and answers, or not.
func (m *model) answer(do func() (*storagev1.VolumeAttachment, error)) (*storagev1.VolumeAttachment, error) {
	fate := rapid.SampledFrom([]string{"answered", "answered", "answered", "lost before", "lost after"}).Draw(m.T, "fate")
	if fate == "lost before" {
		return nil, errLost
	}
	got, err := do()
	if m.depth++; m.depth <= 2 {
		actions := m.actions()
		for range rapid.IntRange(0, 4).Draw(m.T, "meanwhile") {
			actions[rapid.SampledFrom(slices.Sorted(maps.Keys(actions))).Draw(m.T, "action")](m.T)
			m.check()
		}
	}
	m.depth--
	if fate == "lost after" {
		return nil, errLost
	}
	return got, err
}

func (m *model) Create(
	_ context.Context, o *storagev1.VolumeAttachment, _ metav1.CreateOptions,
) (*storagev1.VolumeAttachment, error) {
	return m.answer(func() (*storagev1.VolumeAttachment, error) {
		if m.there[o.Name] != nil {
			return nil, apierrors.NewAlreadyExists(storagev1.Resource("volumeattachments"), o.Name)
		}
		return m.put(o).DeepCopy(), nil
	})
}

func (m *model) Update(
	_ context.Context, o *storagev1.VolumeAttachment, _ metav1.UpdateOptions,
) (*storagev1.VolumeAttachment, error) {
	return m.answer(func() (*storagev1.VolumeAttachment, error) {
		switch now := m.there[o.Name]; {
		case now == nil:
			return nil, apierrors.NewNotFound(storagev1.Resource("volumeattachments"), o.Name)
		case now.ResourceVersion != o.ResourceVersion || now.UID != o.UID:
			return nil, apierrors.NewConflict(storagev1.Resource("volumeattachments"), o.Name, nil)
		}
		return m.put(o).DeepCopy(), nil
	})
}

func (m *model) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	_, err := m.answer(func() (*storagev1.VolumeAttachment, error) {
		switch now := m.there[name]; {
		case now == nil:
			return nil, apierrors.NewNotFound(storagev1.Resource("volumeattachments"), name)
		case now.UID != *o.Preconditions.UID:
			return nil, apierrors.NewConflict(storagev1.Resource("volumeattachments"), name, nil)
		}
		m.drop(name)
		return nil, nil
	})
	return err
}

func (m *model) Get(_ context.Context, name string, _ metav1.GetOptions) (*storagev1.VolumeAttachment, error) {
	return m.answer(func() (*storagev1.VolumeAttachment, error) {
		if m.there[name] == nil {
			return nil, apierrors.NewNotFound(storagev1.Resource("volumeattachments"), name)
		}
		return m.there[name].DeepCopy(), nil
	})
}

func (m *model) Patch(
	context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string,
) (*storagev1.VolumeAttachment, error) {
	return nil, errLost
}

// check compares what is read with what this process has learned.
func (m *model) check() {
	want := map[string]string{}
	latest := map[string]int{}
	for uid, v := range m.newest {
		o := m.versions[strconv.Itoa(v)]
		made, _ := strconv.Atoi(string(uid[len(o.Name):]))
		if made < latest[o.Name] {
			continue
		}
		if latest[o.Name] = made; m.dead[uid] {
			delete(want, o.Name)
		} else {
			want[o.Name] = fmt.Sprint(uid, "@", v, " ", o.Spec.NodeName, " going ", m.going[uid] || o.DeletionTimestamp != nil)
		}
	}
	got := map[string]string{}
	all := m.store.list()
	for _, o := range all {
		if got[o.Name] = fmt.Sprint(o.UID, "@", o.ResourceVersion, " ", o.Spec.NodeName, " going ",
			o.DeletionTimestamp != nil); m.parted[o.UID] {
			m.Fatalf("%s can be read, and was said to be gone", o.UID)
		}
		m.seen[o.UID] = true
	}
	if !maps.Equal(got, want) || len(all) != len(want) {
		m.Fatalf("read %v of %d, want %v", got, len(all), want)
	}
	for uid := range m.seen {
		if is := slices.ContainsFunc(all,
			func(o *storagev1.VolumeAttachment) bool { return o.UID == uid }); is == m.parted[uid] {
			m.Fatalf("%s can be read: %v, was said to be gone: %v", uid, is, m.parted[uid])
		}
	}
	checkFound(m.T, m.store)
	m.hear()
}

// follows says whether a change is the next one after a reported state.
func follows(was *storagev1.VolumeAttachment, c change[*storagev1.VolumeAttachment]) bool {
	return was != nil && was.ResourceVersion == c.before.ResourceVersion && was.UID == c.after.UID &&
		version(c.before) < version(c.after)
}

// hear does what a listener does with the changes that it receives.
func (m *model) hear() {
	l := m.store.listeners[0]
	for _, c := range l.queue {
		switch {
		case c.before == nil:
			m.once(c.after.UID)
			if m.shown[c.after.Name] != nil {
				m.Fatalf("%s has come, and %s is there", c.after.UID, m.shown[c.after.Name].UID)
			}
			m.shown[c.after.Name] = c.after
		case c.after == nil && (m.shown[c.before.Name] == nil || m.shown[c.before.Name].UID != c.before.UID):
			// It was only read here.
			m.once(c.before.UID)
		case c.after == nil:
			delete(m.shown, c.before.Name)
		case follows(m.shown[c.after.Name], c):
			m.shown[c.after.Name] = c.after
		default:
			m.Fatalf("told of %v > %v, knew %v", c.before, c.after, m.shown)
		}
	}
	l.queue = nil
}

// once checks that an object is reported for the first time.
func (m *model) once(uid types.UID) {
	if m.heard[uid] || m.newest[uid] == 0 {
		m.Fatalf("%s was told of before, or nobody knew of it", uid)
	}
	m.heard[uid] = true
}
