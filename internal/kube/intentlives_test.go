package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"
)

// absent is the value of a key that does not stand.
const absent = ""

// lives are the lives of a log, and what is known about it from outside.
type lives struct {
	t      *rapid.T
	server *mapServer
	log    *IntentLog
	// client serves each life.
	client *fake.Clientset
	keys   []string
	puts   int
	// open are the last recorded values of what is neither resolved nor in
	// doubt. Another key may stand with its value of before, or one that was put
	// without an answer; it does if it was open then.
	open, before map[string]string
	doubt        map[string][]string
	wasOpen      map[string]bool
	// tried is the one that a write without an answer was made for, if any.
	tried string
	// resolve, when set, is resolved during the next write.
	resolve string
}

func newLives(t *rapid.T) *lives {
	l := &lives{
		t: t, open: map[string]string{}, before: map[string]string{}, doubt: map[string][]string{},
		wasOpen: map[string]bool{},
	}
	l.server, l.client = newMapServer()
	for n := range 6 {
		l.keys = append(l.keys, fmt.Sprint("k", n))
	}
	l.begin()
	if rapid.Bool().Draw(t, "crowded") {
		// Then new intents have to join others.
		for n := range maxObjects - 2 {
			key := fmt.Sprint("c", n)
			l.keys = append(l.keys, key)
			l.record(key)
		}
	}
	l.server.fate, l.server.changed = l.fate, l.changed
	l.server.arrives = func() bool { return rapid.IntRange(0, 4).Draw(l.t, "arrives") == 0 }
	return l
}

// fate draws what becomes of a write.
func (l *lives) fate() fate {
	if l.resolve != "" {
		l.done(l.resolve)
		l.resolve = ""
	}
	if rapid.IntRange(0, 2).Draw(l.t, "well") > 0 {
		return goesWell
	}
	if rapid.Bool().Draw(l.t, "late") {
		return comesLate
	}
	return fate(rapid.IntRange(1, int(fates)-1).Draw(l.t, "fate"))
}

// changed is called after each change at the server: a crash could come now.
func (l *lives) changed() {
	has, twice := l.server.has()
	if len(twice) > 0 {
		l.t.Fatalf("%v stand in two objects: %s", twice, l.kept())
	}
	for _, key := range l.keys {
		if want, open := l.open[key]; open && has[key] != want {
			l.t.Fatalf("%s is %q, its last recorded value %q: %s", key, has[key], want, l.kept())
		}
		switch value := has[key]; {
		case value == absent && l.wasOpen[key]:
			l.t.Fatalf("%s is gone, and was %q: %s", key, l.before[key], l.kept())
		case value == absent:
			// What was removed does not reappear.
			delete(l.before, key)
		case value != l.open[key] && value != l.before[key] && !slices.Contains(l.doubt[key], value):
			l.t.Fatalf("%s is %q, and was %q: %s", key, value, l.before[key], l.kept())
		}
	}
}

func (l *lives) kept() string {
	var all []string
	for name, o := range l.server.objects {
		all = append(all, fmt.Sprint(name, o.Data))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// begin is the start of another life.
func (l *lives) begin() {
	l.server.ended = false
	l.log = NewIntentLog(l.client, LogPlace{Namespace: logSpace, Name: logName})
	l.check()
	l.load()
}

// load reads the log, if it has to be read, until that succeeds.
func (l *lives) load() {
	for !l.log.loaded {
		told, err := l.log.Load(context.Background())
		if l.server.ended {
			l.crash()
			return
		}
		if n := len(l.log.Open()); err == nil && len(told) != n {
			l.t.Fatalf("%d intents are told, %d are open", len(told), n)
		}
	}
	for _, key := range l.keys {
		l.loaded(key)
	}
	l.tried = ""
	l.check()
}

// loaded compares what is loaded of a key with what may be, and knows it then.
func (l *lives) loaded(key string) {
	all, _ := l.server.has()
	value, ok := l.log.Get(key)
	has, want := all[key], l.open[key]
	recorded := key == l.tried && has != absent && slices.Contains(l.doubt[key], has)
	if want == absent && ok {
		want = has
	}
	if value != want || !ok && (l.wasOpen[key] || recorded) {
		l.t.Fatalf("%s is loaded as %q; open it was %q, before that %q; it stands as %q", key, value, want,
			l.before[key], has)
	}
	for _, known := range []map[string]string{l.open, l.before} {
		delete(known, key)
	}
	delete(l.doubt, key)
	delete(l.wasOpen, key)
	if ok {
		l.open[key] = has
	} else if has != absent {
		l.before[key] = has
	}
}

// check compares what the log says with what stands.
func (l *lives) check() {
	if l.server.ended {
		return
	}
	has, _ := l.server.has()
	for _, key := range l.keys {
		_, stands := has[key]
		if holds := l.log.Holds(key); holds != stands && l.log.loaded || !holds && stands {
			l.t.Fatalf("Holds of %s is %v, loaded %v: %s", key, holds, l.log.loaded, l.kept())
		}
		value, ok := l.log.Get(key)
		if want, open := l.open[key]; l.log.loaded && (ok != open || value != want) {
			l.t.Fatalf("Get of %s is %q, %v, want %q, %v", key, value, ok, want, open)
		}
	}
}

// record puts intents into one batch.
func (l *lives) record(keys ...string) {
	var batch []putRequest
	for _, key := range keys {
		l.puts++
		p := putRequest{key: key, value: fmt.Sprint("v", l.puts)}
		if was, ok := l.before[key]; ok && rapid.Bool().Draw(l.t, "same") {
			p.value = was
		}
		batch = append(batch, p)
		l.doubt[key] = append(l.doubt[key], p.value)
		if value, open := l.open[key]; open {
			l.before[key], l.wasOpen[key] = value, true
			delete(l.open, key)
		}
	}
	l.tried = keys[0]
	err := l.log.write(context.Background(), batch)
	if err == nil {
		l.tried = ""
		for _, p := range batch {
			l.open[p.key] = p.value
			delete(l.doubt, p.key)
			delete(l.before, p.key)
			delete(l.wasOpen, p.key)
		}
	}
}

func (l *lives) done(key string) {
	l.log.Done(key)
	delete(l.wasOpen, key)
	if value, open := l.open[key]; open {
		l.before[key] = value
		delete(l.open, key)
	}
}

// crash ends a life, and with it what was on its way, and begins another one,
// which has only what stands.
func (l *lives) crash() {
	l.server.ended, l.resolve = true, ""
	for _, write := range l.server.late {
		if rapid.Bool().Draw(l.t, "comes") {
			write()
		}
	}
	l.server.late = nil
	l.begin()
}

func (l *lives) one(of []string) string { return rapid.SampledFrom(of).Draw(l.t, "key") }

// TestNothingBegunIsForgotten: over random puts, resolves, sweeps, conflicts,
// lost and late answers, and a crash before or after any write, each key stands
// once, an open one with its last recorded value, and Holds is true exactly
// while it stands.
func TestNothingBegunIsForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLives(t)
		act := func(f func()) func(*rapid.T) {
			return func(t *rapid.T) {
				l.t = t
				l.load()
				f()
				if l.server.ended {
					l.crash()
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": act(func() {
				l.record(rapid.SliceOfNDistinct(rapid.SampledFrom(l.keys), 1, 4, rapid.ID).Draw(l.t, "keys")...)
			}),
			"put and resolve": act(func() {
				l.resolve = l.one(l.keys)
				l.record(slices.DeleteFunc(slices.Clone(l.keys[:6]), func(key string) bool { return key == l.resolve })[:2]...)
			}),
			"resolve": act(func() { l.done(l.one(l.keys)) }),
			"sweep": act(func() {
				before := l.server.writes
				if err := l.log.Sweep(context.Background()); err == nil {
					l.swept()
				}
				if n := l.server.writes - before; n > maxObjects {
					l.t.Fatal(n, "writes in one sweep")
				}
			}),
			"crash": act(func() { l.server.ended = true }),
			"late":  act(l.server.arrive),
			"":      func(t *rapid.T) { l.t = t; l.check() },
		})
	})
}

// swept: a successful sweep leaves nothing that is resolved.
func (l *lives) swept() {
	has, _ := l.server.has()
	for key := range has {
		if _, open := l.open[key]; !open {
			l.t.Fatalf("%s is resolved and left: %s", key, l.kept())
		}
	}
}

// TestALateWriteIsKeptOut: a write that got no answer and has not come when the
// log is read again does not come any more, whatever is swept in between.
func TestALateWriteIsKeptOut(t *testing.T) {
	for _, before := range []int{0, 1} {
		s, client := newMapServer()
		l, _ := loadedLog(t, client)
		for n := range before {
			key := fmt.Sprint("before", n)
			if err := l.Put(t.Context(), key, "v"); err != nil {
				t.Fatal(err)
			}
			l.Done(key)
		}
		s.fate = func() fate { return comesLate }
		lost := l.Put(t.Context(), "k", "v")
		s.fate = func() fate { return goesWell }
		_, err := l.Load(t.Context())
		err = errors.Join(err, l.Put(t.Context(), "next", "v"))
		l.Done("next")
		if err = errors.Join(err, l.Sweep(t.Context())); err != nil || !errors.Is(lost, errLost) {
			t.Fatal(err, lost)
		}
		if writes := s.writes; l.Sweep(t.Context()) != nil || s.writes != writes {
			t.Error("what is swept is swept again")
		}
		s.arrive()
		if has, _ := s.has(); len(has) > 0 || l.Holds("k") {
			t.Errorf("after %d others: %v has come", before, has)
		}
	}
}

// TestAKeyThatStoodTwice: earlier versions left such logs. The newest value counts, and
// the older one is removed before anything acts on the key.
func TestAKeyThatStoodTwice(t *testing.T) {
	s, client := newMapServer()
	l := NewIntentLog(client, LogPlace{Namespace: logSpace, Name: logName})
	for _, o := range []struct{ name, version, value string }{
		{logName + "-1", "10", "new"}, {logName + "-2", "9", "old"},
	} {
		s.objects[o.name] = l.newObject(o.name, map[string]string{"k": o.value, "of " + o.name: "v"})
		s.objects[o.name].ResourceVersion = o.version
	}
	s.version = 10
	open, err := l.Load(t.Context())
	if value, _ := l.Get("k"); err != nil || value != "new" || len(open) != 3 {
		t.Errorf("loaded is %q, %v, %v", value, open, err)
	}
	if has, twice := s.has(); len(twice) > 0 || len(has) != 3 {
		t.Errorf("%v stand twice in %v", twice, has)
	}
	l.Done("k")
	if err := l.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if has, _ := s.has(); has["k"] != absent || len(has) != 2 {
		t.Errorf("left are %v", has)
	}
}
