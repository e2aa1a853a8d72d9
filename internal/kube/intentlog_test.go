package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/testkit/clientset"
)

const logSpace, logName = "system", "intents"

// loadedLog returns a log over the client, and what it found there.
func loadedLog(t *testing.T, client *fake.Clientset) (*IntentLog, []string) {
	t.Helper()
	l := NewIntentLog(client, LogPlace{Namespace: logSpace, Name: logName})
	open, err := l.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l, open
}

// kept returns the keys on the server, object by object.
func kept(t *testing.T, client *fake.Clientset) string {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps(logSpace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, o := range list.Items {
		var keys []string
		for k := range o.Data {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		all = append(all, o.Name+":"+strings.Join(keys, ","))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func writes(client *fake.Clientset) int {
	n := 0
	for _, a := range client.Actions() {
		if a.GetVerb() == "create" || a.GetVerb() == "update" || a.GetVerb() == "delete" {
			n++
		}
	}
	return n
}

// slow makes each write of new intents take a while, as a disk does.
func slow(l *IntentLog, d time.Duration) {
	write := l.puts.Run
	l.puts.Run = func(ctx context.Context, batch []putRequest) error {
		<-time.After(d)
		return write(ctx, batch)
	}
}

// TestIntentsOutliveTheirWriter.
func TestIntentsOutliveTheirWriter(t *testing.T) {
	client := clientset.New()
	l, open := loadedLog(t, client)
	if len(open) > 0 {
		t.Fatal("a new log holds", open)
	}
	for _, key := range []string{"a", "b", "c"} {
		if err := l.Put(t.Context(), key, "value of "+key); err != nil {
			t.Fatal(err)
		}
	}
	l.Done("b")
	if _, ok := l.Get("b"); ok {
		t.Error("a resolved intent is still there")
	}
	l, open = loadedLog(t, client)
	// What is resolved may still stand in an object that has not been written
	// since.
	if v, ok := l.Get("a"); !ok || v != "value of a" || !slices.Contains(open, "c") {
		t.Errorf("after a restart: %q, %v", v, open)
	}
}

// TestObjectsAreUsedAgain: one intent after the other takes one object and one
// write each, and nothing is left at last.
func TestObjectsAreUsedAgain(t *testing.T) {
	client := clientset.New()
	l, _ := loadedLog(t, client)
	for i := range 5 {
		key := fmt.Sprint("k", i)
		if err := l.Put(t.Context(), key, "v"); err != nil {
			t.Fatal(err)
		}
		if got := kept(t, client); got != "intents-1:"+key {
			t.Errorf("kept is %q", got)
		}
		l.Done(key)
	}
	if n := writes(client); n != 5 {
		t.Errorf("%d writes for 5 intents", n)
	}
	if err := l.Sweep(t.Context()); err != nil || kept(t, client) != "" {
		t.Errorf("left: %q, %v", kept(t, client), err)
	}
}

// TestSweepLeavesWhatIsOpen, also where it stands beside what is resolved.
func TestSweepLeavesWhatIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		l, _ := loadedLog(t, client)
		slow(l, time.Millisecond)
		var all sync.WaitGroup
		for _, key := range []string{"a", "b", "c", "d"} {
			all.Go(func() {
				if err := l.Put(t.Context(), key, "v"); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if got := kept(t, client); got != "intents-1:a intents-2:b,c,d" {
			t.Fatal("kept is", got)
		}
		for _, c := range []struct{ done, left string }{
			{"c", "intents-1:a intents-2:b,d"}, {"a", "intents-2:b,d"}, {"b", "intents-2:d"}, {"d", ""},
		} {
			l.Done(c.done)
			if !l.Holds(c.done) {
				t.Error("gone before it was swept:", c.done)
			}
			if err := l.Sweep(t.Context()); err != nil || kept(t, client) != c.left || l.Holds(c.done) {
				t.Errorf("after %s left: %q, %v", c.done, kept(t, client), err)
			}
		}
	})
}

// TestManyAtOnceShareWrites: with a hundred under way all the time, each costs
// a tenth of a write at most.
func TestManyAtOnceShareWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientset.New()
		l, _ := loadedLog(t, client)
		slow(l, 2*time.Millisecond)
		const workers, each = 100, 20
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				for i := range each {
					key := fmt.Sprint(w, "-", i)
					if err := l.Put(t.Context(), key, "v"); err != nil {
						t.Error(err)
					}
					if !strings.Contains(kept(t, client), key) {
						t.Error("put before it was written:", key)
					}
					<-time.After(20 * time.Millisecond)
					l.Done(key)
				}
			})
		}
		all.Wait()
		if err := l.Sweep(t.Context()); err != nil || kept(t, client) != "" {
			t.Errorf("left: %q, %v", kept(t, client), err)
		}
		if n := writes(client); n > workers*each/10 {
			t.Errorf("%d writes for %d intents", n, workers*each)
		}
	})
}

// TestAWriteOfUnknownOutcome: the log is read before it is written again, and
// what it turns out to hold is returned once, without resolved intents.
func TestAWriteOfUnknownOutcome(t *testing.T) {
	client := clientset.New()
	l, _ := loadedLog(t, client)
	if err := l.Put(t.Context(), "old", "v"); err != nil {
		t.Fatal(err)
	}
	fail := true
	client.PrependReactor("create", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if !fail {
			return false, nil, nil
		}
		fail = false
		// It is written, and its answer is lost.
		o := a.(clienttesting.CreateAction).GetObject()
		if err := client.Tracker().Create(a.GetResource(), o, logSpace); err != nil {
			t.Error(err)
		}
		return true, nil, errors.New("connection lost")
	})
	if err := l.Put(t.Context(), "new", "v"); err == nil {
		t.Fatal("a lost answer is no success")
	}
	if err := l.Put(t.Context(), "new", "v"); err == nil {
		t.Fatal("written over what is not known")
	}
	l.Done("old")
	open, err := l.Load(t.Context())
	if err != nil || !slices.Equal(open, []string{"new"}) {
		t.Errorf("open: %v, %v", open, err)
	}
	if again, _ := l.Load(t.Context()); len(again) > 0 {
		t.Error("told twice:", again)
	}
}

// TestASecondWriterIsNoticed: its intents are not written over.
func TestASecondWriterIsNoticed(t *testing.T) {
	client := clientset.New()
	l, _ := loadedLog(t, client)
	other, _ := loadedLog(t, client)
	if err := other.Put(t.Context(), "theirs", "v"); err != nil {
		t.Fatal(err)
	}
	if err := l.Put(t.Context(), "ours", "v"); err == nil {
		t.Error("no error for an object that is somebody else's")
	}
	open, err := l.Load(t.Context())
	if err != nil || !slices.Equal(open, []string{"theirs"}) {
		t.Errorf("open: %v, %v", open, err)
	}
	if err := l.Put(t.Context(), "ours", "v"); err != nil || kept(t, client) != "intents-1:theirs intents-2:ours" {
		t.Errorf("kept: %q, %v", kept(t, client), err)
	}
}

// TestLargeIntentsDoNotShare: an object takes no more than the server does.
func TestLargeIntentsDoNotShare(t *testing.T) {
	client := clientset.New()
	l, _ := loadedLog(t, client)
	slow(l, time.Millisecond)
	maxBatch, _ := l.place.limits()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			if err := l.Put(t.Context(), fmt.Sprint(i), strings.Repeat("x", maxBatch/2+1)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := strings.Count(kept(t, client), ":"); n != 4 {
		t.Errorf("%d objects: %s", n, kept(t, client))
	}
}

// putAll puts intents of that many bytes, key0 and so on, one after the other:
// each gets an object of its own while there may be more.
func putAll(t *testing.T, l *IntentLog, key string, size func(i int) int) {
	t.Helper()
	for i := range maxObjects {
		if err := l.Put(t.Context(), fmt.Sprint(key, i), strings.Repeat("x", size(i))); err != nil {
			t.Fatal(i, err)
		}
	}
}

// TestALogHasFewObjects: when each holds something open new intents join the
// least, without what is resolved there.
func TestALogHasFewObjects(t *testing.T) {
	client := clientset.New()
	l, _ := loadedLog(t, client)
	putAll(t, l, "k", func(i int) int { return 1000 - i })
	for _, key := range []string{"more", "again"} {
		if err := l.Put(t.Context(), key, "v"); err != nil {
			t.Fatal(err)
		}
		keys := []string{fmt.Sprint("k", maxObjects-1), key}
		slices.Sort(keys)
		least := fmt.Sprintf("%s-%d:%s ", logName, maxObjects, strings.Join(keys, ","))
		if got := kept(t, client); strings.Count(got, ":") != maxObjects || !strings.Contains(got, least) {
			t.Errorf("kept is %q, without %s", got, least)
		}
		l.Done(key)
	}
	allowed := l.place.Access()[1].Names
	for _, o := range strings.Fields(kept(t, client)) {
		if name, _, _ := strings.Cut(o, ":"); !slices.Contains(allowed, name) {
			t.Error("written without a right:", name)
		}
	}
}

// TestAFullLogTakesNoMore until something is resolved, and loses nothing.
func TestAFullLogTakesNoMore(t *testing.T) {
	client := clientset.New()
	l, _ := loadedLog(t, client)
	maxBatch, _ := l.place.limits()
	large := func(int) int { return maxBatch }
	putAll(t, l, "small", func(int) int { return 10 })
	putAll(t, l, "large", large)
	last := strings.Repeat("x", large(0))
	if err := l.Put(t.Context(), "last", last); err == nil {
		t.Error("more is taken than the server takes")
	}
	l.Done("large3")
	if err := errors.Join(l.Put(t.Context(), "last", last), l.Sweep(t.Context())); err != nil {
		t.Error(err)
	}
	// The next life finds all that is open, and nothing else.
	if open := openOf(t, client); len(open) != 2*maxObjects || slices.Contains(open, "large3") ||
		!slices.Contains(open, "last") {
		t.Errorf("open: %v", open)
	}
}

// openOf returns what another life of the log finds.
func openOf(t *testing.T, client *fake.Clientset) []string {
	t.Helper()
	_, open := loadedLog(t, client)
	return open
}

// TestWhatIsResolvedDuringAWriteStaysSo, also when it is written again because
// others join it.
func TestWhatIsResolvedDuringAWriteStaysSo(t *testing.T) {
	client := clientset.New()
	l, _ := loadedLog(t, client)
	for i := range maxObjects {
		if err := l.Put(t.Context(), fmt.Sprint("k", i), "v"); err != nil {
			t.Fatal(err)
		}
	}
	client.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		l.Done("k0")
		return false, nil, nil
	})
	if err := l.Put(t.Context(), "joins", "v"); err != nil {
		t.Fatal(err)
	}
	if got := kept(t, client); !strings.Contains(got, logName+"-1:joins,k0") {
		t.Fatal("kept is", got)
	}
	if _, ok := l.Get("k0"); ok || !l.Holds("k0") {
		t.Error("what is resolved is open again, or forgotten though it stands")
	}
	if err := l.Sweep(t.Context()); err != nil || !strings.Contains(kept(t, client), logName+"-1:joins ") {
		t.Errorf("left: %q, %v", kept(t, client), err)
	}
}
