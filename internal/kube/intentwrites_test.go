package kube

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// mustPut puts one intent after the other.
func mustPut(t *testing.T, l *IntentLog, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if err := l.Put(t.Context(), key, "v"); err != nil {
			t.Fatal(key, err)
		}
	}
}

// reloaded makes a write that is answered with errLost, whatever its fate is, reads
// the log again, and returns the open intents and how many writes the reading took.
func reloaded(t *testing.T, s *mapServer, l *IntentLog, becomes fate, write func() error) (open []string, writes int) {
	t.Helper()
	s.fate = func() fate { return becomes }
	if err := write(); !errors.Is(err, errLost) {
		t.Fatal("the write is answered:", err)
	}
	s.fate = func() fate { return goesWell }
	before := s.writes
	if err := l.Sweep(t.Context()); err != nil || s.writes != before {
		t.Fatal("what is not known is swept:", err)
	}
	open, err := l.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return open, s.writes - before
}

// TestTheRightsOfALog: it makes and lists ConfigMaps where it is, and changes no
// other than its own.
func TestTheRightsOfALog(t *testing.T) {
	var names []string
	for n := 1; n <= maxObjects; n++ {
		names = append(names, fmt.Sprint(logName, "-", n))
	}
	want := []Access{
		{Namespace: logSpace, Resource: "configmaps", Verbs: []string{"create", "list"}},
		{
			Namespace: logSpace, Resource: "configmaps", Names: names, Verbs: []string{"update", "delete"},
			Fields: []Field{
				{Path: "data"},
				{Path: "metadata.annotations[volplane.dev/intents]"},
				{Path: "metadata.annotations[volplane.dev/intents-after]"},
			},
		},
	}
	if diff := cmp.Diff(want, LogPlace{Namespace: logSpace, Name: logName}.Access()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestWhatIsWritten: the whole objects, by what later lives find them and by what
// an older write is kept out.
func TestWhatIsWritten(t *testing.T) {
	s, client := newMapServer()
	l, _ := loadedLog(t, client)
	mustPut(t, l, "a")
	first := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: logSpace, Name: logName + "-1", Labels: map[string]string{volume.LabelIntents: logName}, UID: "uid-1",
			ResourceVersion: "2",
		},
		Data: map[string]string{"a": "v"},
	}
	if diff := cmp.Diff(map[string]*corev1.ConfigMap{logName + "-1": first}, s.objects); diff != "" {
		t.Errorf("made (-want +got):\n%s", diff)
	}
	l.Done("a")
	mustPut(t, l, "b")
	next := first.DeepCopy()
	next.Annotations, next.ResourceVersion, next.Data = map[string]string{volume.AnnIntentsAfter: "2"}, "3",
		map[string]string{"b": "v"}
	if diff := cmp.Diff(map[string]*corev1.ConfigMap{logName + "-1": next}, s.objects); diff != "" {
		t.Errorf("written again (-want +got):\n%s", diff)
	}
	if known := l.objects[logName+"-1"]; known.Data != nil {
		t.Error("the intents are kept twice:", known.Data)
	}
}

// TestSomebodyElsesConfigMap has the name of one of ours: it is not read, and what
// another one of our label holds is not either.
func TestSomebodyElsesConfigMap(t *testing.T) {
	client := clientset.New()
	for name, labels := range map[string]map[string]string{logName + "-1": nil, "other": {volume.LabelIntents: logName}} {
		o := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: logSpace, Name: name, Labels: labels},
			Data:       map[string]string{"of " + name: "v"},
		}
		if err := client.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	l, open := loadedLog(t, client)
	if err := l.Sweep(t.Context()); err != nil || len(open) > 0 ||
		kept(t, client) != logName+"-1:of "+logName+"-1 other:of other" {
		t.Errorf("read %v, kept %s, %v", open, kept(t, client), err)
	}
}

// TestALogThatCannotBeRead is not loaded, and takes nothing.
func TestALogThatCannotBeRead(t *testing.T) {
	client := clientset.New()
	client.PrependReactor("list", "configmaps",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errLost })
	l := NewIntentLog(client, LogPlace{Namespace: logSpace, Name: logName})
	if open, err := l.Load(t.Context()); !errors.Is(err, errLost) || open != nil || !l.Holds("any") {
		t.Errorf("read %v, %v", open, err)
	}
	if err := l.Put(t.Context(), "k", "v"); err == nil || writes(client) > 0 {
		t.Error("put without having been read:", err)
	}
}

// TestReadingAgain: what a write of unknown outcome has done is taken as it is,
// and costs no write where nothing can come any more.
func TestReadingAgain(t *testing.T) {
	for _, c := range []struct {
		// put is an intent that is resolved; write puts KEY=VALUE, or sweeps if it is empty.
		argues, put, write string
		fate               fate
		open               []string
		writes             int
	}{
		{"an object was made", "", "k=v", losesAnswer, []string{"k"}, 0},
		{"an object may be made still", "", "k=v", isDropped, nil, 1},
		{"an object was written", "old", "k=v", losesAnswer, []string{"k"}, 0},
		{"an object may be written still", "old", "k=v", isDropped, nil, 1},
		{"an object was deleted", "old", "", losesAnswer, nil, 0},
		{"an object may be deleted still", "old", "", isDropped, nil, 1},
		{"what is resolved was put again as it was", "old", "old=v", losesAnswer, []string{"old"}, 0},
		{"or may be, and is resolved as long as it is not there anew", "old", "old=other", isDropped, nil, 1},
		{"what is resolved was put again otherwise", "old", "old=other", losesAnswer, []string{"old"}, 0},
	} {
		s, client := newMapServer()
		l, _ := loadedLog(t, client)
		if c.put != "" {
			mustPut(t, l, c.put)
			l.Done(c.put)
		}
		write := func() error { return l.Sweep(t.Context()) }
		if key, value, is := strings.Cut(c.write, "="); is {
			write = func() error { return l.Put(t.Context(), key, value) }
		}
		if open, writes := reloaded(t, s, l, c.fate, write); !slices.Equal(open, c.open) || writes != c.writes {
			t.Errorf("%s: open %v, want %v, with %d writes, want %d", c.argues, open, c.open, writes, c.writes)
		}
	}
}

// TestALossIsOver once the log is read: the next one does not bring it back.
func TestALossIsOver(t *testing.T) {
	s, client := newMapServer()
	l, _ := loadedLog(t, client)
	reloaded(t, s, l, losesAnswer, func() error { return l.Put(t.Context(), "k", "v") })
	mustPut(t, l, "next")
	l.Done("k")
	if err := l.Sweep(t.Context()); err != nil || len(s.objects) != 1 {
		t.Fatalf("left %v, %v", s.objects, err)
	}
	open, writes := reloaded(t, s, l, losesAnswer, func() error { l.Done("next"); return l.Sweep(t.Context()) })
	if len(open) > 0 || writes > 0 || len(s.objects) > 0 {
		t.Errorf("open %v, %d writes, left %v", open, writes, s.objects)
	}
}

// TestWhatAnotherWriterDid: what it took away is gone, what it put again is open,
// though it was resolved here.
func TestWhatAnotherWriterDid(t *testing.T) {
	s, client := newMapServer()
	l, _ := loadedLog(t, client)
	mustPut(t, l, "gone")
	delete(s.objects, logName+"-1")
	if err := l.Put(t.Context(), "gone", "v"); err == nil {
		t.Fatal("written over nothing")
	}
	if open, err := l.Load(t.Context()); err != nil || len(open) > 0 || l.Holds("gone") {
		t.Errorf("open %v, %v", open, err)
	}
	mustPut(t, l, "k")
	l.Done("k")
	other, _ := loadedLog(t, client)
	if err := other.Put(t.Context(), "k", "theirs"); err != nil {
		t.Fatal(err)
	}
	if err := l.Put(t.Context(), "k", "v"); err == nil {
		t.Fatal("written over somebody else's")
	}
	if open, err := l.Load(t.Context()); err != nil || !slices.Equal(open, []string{"k"}) {
		t.Errorf("open %v, %v", open, err)
	}
}

// TestKeysThatStoodTwice are removed from each object with one write, and are returned
// once, in order.
func TestKeysThatStoodTwice(t *testing.T) {
	s, client := newMapServer()
	l := NewIntentLog(client, LogPlace{Namespace: logSpace, Name: logName})
	older, newest := []map[string]string{{}, {}}, map[string]string{}
	var want []string
	for n := range 20 {
		key := fmt.Sprintf("k%02d", n)
		older[n%2][key], newest[key], want = "old", "new", append(want, key)
	}
	for n, data := range append(older, newest) {
		name := fmt.Sprint(logName, "-", n+1)
		s.objects[name] = l.newObject(name, data)
		s.objects[name].ResourceVersion = s.next()
	}
	open, err := l.Load(t.Context())
	if err != nil || !slices.Equal(open, want) || s.writes != 2 || len(s.objects) != 1 {
		t.Errorf("open %v, %v, %d writes, left %v", open, err, s.writes, s.objects)
	}
}

// TestHoldsWhatIsComing: an intent may stand on the server before that is known.
func TestHoldsWhatIsComing(t *testing.T) {
	s, client := newMapServer()
	l, _ := loadedLog(t, client)
	s.fate = func() fate {
		if !l.Holds("k") || l.Holds("other") {
			t.Error("what is coming is not held, or what is not")
		}
		return goesWell
	}
	mustPut(t, l, "k")
}

// TestOnlyACrowdWaits for company, the longer the more there are, up to a bound.
func TestOnlyACrowdWaits(t *testing.T) {
	for _, c := range []struct {
		open, done int
		want       time.Duration
	}{{0, 0, 0}, {minOpenToWait - 1, minOpenToWait, 0}, {minOpenToWait, 0, 2 * time.Millisecond}, {100, 0, maxWait}} {
		synctest.Test(t, func(t *testing.T) {
			_, client := newMapServer()
			l, _ := loadedLog(t, client)
			for n := range c.open + c.done {
				l.entries[fmt.Sprint(n)] = &intent{object: logName + "-1", resolved: n >= c.open}
			}
			begun := time.Now()
			if mustPut(t, l, "k"); time.Since(begun) != c.want {
				t.Errorf("%d open: waited %s, want %s", c.open, time.Since(begun), c.want)
			}
		})
	}
}

// TestWhatFits: a batch takes what an object takes, and at least one.
func TestWhatFits(t *testing.T) {
	of := func(sizes ...int) (all []putRequest) {
		for _, size := range sizes {
			all = append(all, putRequest{"k", strings.Repeat("x", size-1)})
		}
		return all
	}
	l := NewIntentLog(clientset.New(), LogPlace{})
	maxBatch, _ := l.place.limits()
	for _, c := range []struct {
		all  []putRequest
		want int
	}{{of(maxBatch/2, maxBatch/2), 2}, {of(maxBatch/2, maxBatch/2+1), 1}, {of(2 * maxBatch), 1}, {of(2*maxBatch, 1), 1}} {
		if got := l.countFitting(c.all); got != c.want {
			t.Errorf("%d of %d fit", got, len(c.all))
		}
	}
}

// TestTheLastRoom: what just fits beside what is open is taken, and what is larger
// than an object may be if it has one to itself: the server says whether it is.
func TestTheLastRoom(t *testing.T) {
	client := clientset.New()
	l, _ := loadedLog(t, client)
	_, maxFull := l.place.limits()
	if err := l.Put(t.Context(), "huge", strings.Repeat("x", maxFull+1)); err != nil {
		t.Fatal(err)
	}
	l.Done("huge")
	half := strings.Repeat("x", maxFull/2-3)
	putAll(t, l, "k", func(i int) int { return maxFull/2 - len(fmt.Sprint("k", i)) })
	if err := l.Put(t.Context(), "more", half); err == nil {
		t.Error("one byte too much is taken")
	}
	if err := l.Put(t.Context(), "fit", half); err != nil {
		t.Error("what fits is not taken:", err)
	}
}

// TestWhatThereIsComesFirst: an object with nothing open is written again before
// another one is made.
func TestWhatThereIsComesFirst(t *testing.T) {
	client := clientset.New()
	l, _ := loadedLog(t, client)
	mustPut(t, l, "a", "b")
	l.Done("a")
	if err := l.Sweep(t.Context()); err != nil || kept(t, client) != logName+"-2:b" {
		t.Fatalf("kept %s, %v", kept(t, client), err)
	}
	l.Done("b")
	if mustPut(t, l, "c"); kept(t, client) != logName+"-2:c" {
		t.Errorf("kept %s", kept(t, client))
	}
}

// TestSweepWritesWhatItMust: nothing is written if all intents are open, and an empty object is deleted.
func TestSweepWritesWhatItMust(t *testing.T) {
	s, client := newMapServer()
	l := NewIntentLog(client, LogPlace{Namespace: logSpace, Name: logName})
	s.objects[logName+"-3"] = l.newObject(logName+"-3", nil)
	if _, err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 0} {
		before := s.writes
		if err := l.Sweep(t.Context()); err != nil || s.writes-before != want || len(s.objects) != 0 {
			t.Fatalf("%d writes, left %v, %v", s.writes-before, s.objects, err)
		}
	}
	mustPut(t, l, "a", "b")
	before := s.writes
	if err := l.Sweep(t.Context()); err != nil || s.writes != before {
		t.Errorf("%d writes for nothing, %v", s.writes-before, err)
	}
}

// TestRefused: only an answer that says no proves that nothing comes.
func TestRefused(t *testing.T) {
	answer := func(code int32) error { return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code}} }
	for _, c := range []struct {
		err  error
		want bool
	}{
		{errLost, false},
		{answer(0), false},
		{answer(399), false},
		{answer(400), true},
		{answer(403), true},
		{answer(404), true},
		{answer(408), false},
		{answer(409), true},
		{answer(422), true},
		{answer(429), true},
		{answer(499), true},
		{answer(500), false},
		{answer(504), false},
		{fmt.Errorf("write: %w", answer(409)), true},
	} {
		if got := isRefusal(c.err); got != c.want {
			t.Errorf("%v: refused %v", c.err, got)
		}
	}
}
