package page

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/gather/gathertest"
	"volplane.dev/volplane/internal/testkit"
)

// news is what a tab receives: the first event of each kind of page, one after the other.
type news struct {
	id    string
	lines *bufio.Scanner
	stop  func()
}

// tune opens the stream of a page.
func tune(t *testing.T, client *http.Client, root, of string) *news {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, root+"live?of="+of, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %v", answer.StatusCode, answer.Header)
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<22)
	return &news{lines: lines, stop: cancel}
}

// next waits for the next event, and returns its page.
func (n *news) next(t *testing.T) string {
	t.Helper()
	for n.lines.Scan() {
		if id, is := strings.CutPrefix(n.lines.Text(), "id: "); is {
			n.id = id
		}
		if data, is := strings.CutPrefix(n.lines.Text(), "data: "); is {
			var sent struct{ Title, Main string }
			if err := json.Unmarshal([]byte(data), &sent); err != nil {
				t.Fatal(err)
			}
			return sent.Main
		}
	}
	t.Fatalf("the stream has ended: %v", n.lines.Err())
	return ""
}

// moving is a plane that a test changes, and that counts how often it is read.
type moving struct {
	Plane
	looks   atomic.Int64
	mu      sync.Mutex
	changed chan struct{}
}

func movingTown() *moving {
	m := &moving{Plane: planeOf(gathertest.Town()), changed: make(chan struct{})}
	objects := m.Objects
	m.Objects = func(ctx context.Context) (state.Objects, error) {
		m.looks.Add(1)
		return objects(ctx)
	}
	m.Pace = func() map[string]float64 { return nil }
	m.Changed = func() <-chan struct{} {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.changed
	}
	return m
}

func (m *moving) change() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.changed)
	m.changed = make(chan struct{})
}

// remove deletes a claim, which is a change.
func (m *moving) remove(t *testing.T, claim string) {
	t.Helper()
	err := m.Client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), claim, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.change()
}

// TestOneLookForAllTabs: the control plane is read once per change, however many tabs are open, and requests right
// after that are answered from the same sight.
func TestOneLookForAllTabs(t *testing.T) {
	plane := movingTown()
	_, client, root := serve(t, plane.Plane)
	var tabs []*news
	for range 10 {
		tabs = append(tabs, tune(t, client, root, "claims"))
	}
	for _, tab := range tabs {
		if main := tab.next(t); !strings.Contains(main, "1 to 5 of 5") {
			t.Fatalf("first %s", main)
		}
	}
	// The first events of newly watched reports cause a read, too.
	quietFor(t, plane)
	before := plane.looks.Load()
	plane.remove(t, "late")
	for _, tab := range tabs {
		if main := tab.next(t); !strings.Contains(main, "1 to 4 of 4") || tab.id != tabs[0].id {
			t.Errorf("then %s", main)
		}
	}
	if n := plane.looks.Load() - before; n != 1 {
		t.Errorf("one change was read %d times", n)
	}
	status, body, _ := get(t, client, root+"claims", nil)
	if status != http.StatusOK || !strings.Contains(body, tabs[0].id) || plane.looks.Load() != before+1 {
		t.Errorf("a request for the page reads again: %d", plane.looks.Load())
	}
}

// TestATabThatHasThePage: nothing is sent to a tab before its page changes, even when something else does, such as a
// warning; and closed tabs are forgotten.
func TestATabThatHasThePage(t *testing.T) {
	plane := movingTown()
	p, client, root := serve(t, plane.Plane)
	first := tune(t, client, root, "claims")
	first.next(t)
	again := tune(t, client, root, "claims&version="+first.id)
	quietFor(t, plane)
	before := plane.looks.Load()
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "e"}, Type: corev1.EventTypeWarning}
	if _, err := plane.Client.CoreV1().Events("ns").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, testkit.Unless("a warning is seen", func() bool {
		return plane.looks.Load() > before
	}))
	plane.remove(t, "data")
	if main := again.next(t); !strings.Contains(main, "1 to 4 of 4") {
		t.Errorf("a tab that had the newest page was sent %s", main)
	}
	again.stop()
	first.stop()
	testkit.Eventually(t, time.Minute, testkit.Unless("the tabs are forgotten", func() bool {
		p.live.mu.Lock()
		defer p.live.mu.Unlock()
		return p.live.tabs == 0 && len(p.live.topics) == 0 && p.live.lookers == 1 // one just invited
	}))
}

// quietFor waits until the new watches have caused their last read.
func quietFor(t *testing.T, plane *moving) {
	t.Helper()
	last, since := plane.looks.Load(), time.Now()
	testkit.Eventually(t, time.Minute, testkit.Unless("it is quiet", func() bool {
		if now := plane.looks.Load(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 4*shortest
	}))
}

// TestTooManyTabs: one tab above the limit is refused, and the others continue.
func TestTooManyTabs(t *testing.T) {
	_, client, root := serve(t, movingTown().Plane)
	for range mostTabs {
		tune(t, client, root, "")
	}
	if status, body, _ := get(t, client, root+"live?of=", nil); status != http.StatusServiceUnavailable {
		t.Errorf("one more tab: %d %s", status, body)
	}
}

// TestAPlaneThatCannotBeRead: a request gets the reason, and open tabs are updated when the control plane can be read
// again.
func TestAPlaneThatCannotBeRead(t *testing.T) {
	plane := movingTown()
	objects, fails := plane.Objects, atomic.Bool{}
	plane.Objects = func(ctx context.Context) (state.Objects, error) {
		if fails.Load() {
			return state.Objects{}, context.DeadlineExceeded
		}
		return objects(ctx)
	}
	fails.Store(true)
	_, client, root := serve(t, plane.Plane)
	if status, body, _ := get(t, client, root, nil); status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "deadline") {
		t.Errorf("%d %s", status, body)
	}
	tab := tune(t, client, root, "")
	fails.Store(false)
	plane.change()
	if main := tab.next(t); !strings.Contains(main, "<h1>Overview</h1>") {
		t.Errorf("then %s", main)
	}
}

// TestABusyPlane: a request while reading the control plane takes long gets the last sight, without waiting.
func TestABusyPlane(t *testing.T) {
	plane := movingTown()
	objects, hangs := plane.Objects, make(chan struct{})
	var slow atomic.Bool
	plane.Objects = func(ctx context.Context) (state.Objects, error) {
		if slow.Load() {
			<-hangs
		}
		return objects(ctx)
	}
	_, client, root := serve(t, plane.Plane)
	tab := tune(t, client, root, "claims")
	tab.next(t)
	quietFor(t, plane)
	slow.Store(true)
	plane.remove(t, "late")
	testkit.Eventually(t, time.Minute, testkit.Unless("it is shown", func() bool {
		status, body, _ := get(t, client, root+"claims", nil)
		return status == http.StatusOK && strings.Contains(body, "1 to 5 of 5")
	}))
	close(hangs)
	if main := tab.next(t); !strings.Contains(main, "1 to 4 of 4") {
		t.Errorf("then %s", main)
	}
}

// TestWhatThisHostSays: a driver that is no longer connected and a volume that fills up are shown although no object
// changes, to open tabs within a moment and to new requests immediately; while they stay the same, nothing is read.
func TestWhatThisHostSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := movingTown()
		var down atomic.Bool
		var used atomic.Int64
		used.Store(1)
		plane.Connected = func() map[string]bool { return map[string]bool{"d.example.com": !down.Load()} }
		plane.Usage = func() map[string]Usage { return map[string]Usage{"ns/c1": {used.Load() << 30, 7 << 30}} }
		l := &live{plane: newRenderer(plane.Plane), log: slog.New(slog.DiscardHandler)}
		release := l.hold(t.Context())
		overview, _, _ := l.enter(target{kind: "overview", root: "./"})
		seen := func(after time.Duration, what string) bool {
			wait(t.Context(), after)
			synctest.Wait()
			_, news := l.latest(overview)
			return strings.Contains(string(news), what)
		}
		if !seen(time.Minute, "connected") || seen(0, "not connected") {
			t.Fatal("the driver is not shown as connected")
		}
		before := plane.looks.Load()
		if seen(time.Hour, "not connected") || plane.looks.Load() != before {
			t.Errorf("%d reads without a change", plane.looks.Load()-before)
		}
		if down.Store(true); !seen(2*tick, "not connected") {
			t.Error("a driver that died is shown as connected")
		}
		if used.Store(6); !seen(2*tick, "6.0 GiB") {
			t.Error("a volume is shown as empty as it was")
		}
		down.Store(false)
		if s, err := l.look(t.Context()); err != nil || !s.connected["d.example.com"] {
			t.Errorf("who asks is shown what was: %v", err)
		}
		if n := plane.looks.Load() - before; n != 3 {
			t.Errorf("three changes were read %d times", n)
		}
		release()
		l.end()
		synctest.Wait()
	})
}

// TestTheLifeIsToldToTheEnd: reading an object's history, which all tabs share, does not end with the browser that
// asked first, and a failed read is repeated at the next request.
func TestTheLifeIsToldToTheEnd(t *testing.T) {
	var fails atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(map[bool]int{true: http.StatusForbidden, false: http.StatusNotFound}[fails.Load()])
	}))
	defer api.Close()
	plane := planeOf(gathertest.Town())
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	plane.Client = client
	claim, err := targetOf("object/pvc/ns/data")
	if err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, c := range []struct {
		why   string
		fails bool
	}{{why: "the browser that asked goes away"}, {why: "the API refuses once", fails: true}} {
		s, err := plane.see(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for again := range 2 {
			fails.Store(c.fails && again == 0)
			r, err := s.page(gone, newRenderer(plane), claim)
			if told := !strings.Contains(string(r.main), "Not all could be read"); err != nil || told == fails.Load() {
				t.Errorf("%s, time %d: %v: %s", c.why, again+1, err, r.main)
			}
		}
	}
}
