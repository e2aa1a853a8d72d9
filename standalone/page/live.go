package page

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/volume"
)

const (
	// shortest is the shortest pause between two renderings, and busy how many times as long as a rendering it is at
	// least: a plane where much happens spends no more than a fifth of a core on its page.
	shortest, busy = 250 * time.Millisecond, 4
	// tick is the shortest pause between checks whether time alone, or this host, has changed what is shown, and idle how
	// many times as long as a rendering it is at least.
	tick, idle = 10 * time.Second, 200
	// beat is how often a stream without news says that it lives.
	beat = 15 * time.Second
	// fresh is the greatest age of a sight that answers a request, whatever has changed since.
	fresh = time.Second
	// patience is how long a request waits for a newer sight than the kept one, and lookLimit the time limit of reading
	// the control plane.
	patience, lookLimit = 50 * time.Millisecond, time.Minute
	// mostTabs bounds the streams at the same time.
	mostTabs = 64
)

// live follows the control plane while tabs are open, or about to be, and renders open pages once per change for all of
// them.
type live struct {
	plane renderer
	log   *slog.Logger
	// one keeps two goroutines from reading the whole control plane at the same time.
	one sync.Mutex

	mu     sync.Mutex
	topics map[string]*topic
	// tabs is the number of open tabs, and lookers includes the invited ones.
	tabs, lookers int
	stop          context.CancelFunc
	// fresh is signalled when a topic has been added.
	fresh chan struct{}
	// kept is the last sight; nil while no tab is open.
	kept *sight
}

// topic is a page that tabs show.
type topic struct {
	target
	// news is what its tabs receive, and version numbers the rendering; empty before the first one.
	news    []byte
	version string
	tabs    map[chan struct{}]struct{}
}

// hold follows the control plane until release is called.
func (l *live) hold(ctx context.Context) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lookers++; l.lookers == 1 {
		follow, stop := context.WithCancel(context.WithoutCancel(ctx))
		l.topics, l.fresh, l.stop = map[string]*topic{}, make(chan struct{}, 1), stop
		go l.follow(follow, l.fresh)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.lookers--; l.lookers == 0 {
			l.stop()
			l.kept = nil
		}
	}
}

// end ends following, even if tabs are open.
func (l *live) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop != nil {
		l.stop()
	}
}

// enter adds a tab, which the channel notifies of news, while the control plane is held; false if there are too many.
func (l *live) enter(t target) (*topic, chan struct{}, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tabs == mostTabs {
		return nil, nil, false
	}
	l.tabs++
	o := l.topics[t.address]
	if o == nil {
		o = &topic{target: t, tabs: map[chan struct{}]struct{}{}}
		l.topics[t.address] = o
		poke(l.fresh)
	}
	told := make(chan struct{}, 1)
	o.tabs[told] = struct{}{}
	poke(told)
	return o, told, true
}

func (l *live) leave(o *topic, told chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tabs--
	delete(o.tabs, told)
	if len(o.tabs) == 0 {
		delete(l.topics, o.address)
	}
}

// look returns the current state of the control plane, or that of a moment ago: the kept sight is valid while the
// control plane is followed and has not changed. If reading it again takes long, because much changes or the host is
// busy, it returns the kept sight instead of waiting; the page shows its time.
func (l *live) look(ctx context.Context) (*sight, error) {
	s := l.last()
	if s != nil && s.isGood(l.plane.Plane) {
		return s, nil
	}
	type answer struct {
		*sight
		error
	}
	done := make(chan answer, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookLimit)
		defer cancel()
		newer, err := l.renew(ctx, s)
		done <- answer{newer, err}
	}()
	var late <-chan time.Time
	if s != nil {
		late = time.After(patience)
	}
	select {
	case a := <-done:
		return a.sight, a.error
	case <-late:
		return s, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// renew reads the control plane again, unless another caller has done so since a sight was kept.
func (l *live) renew(ctx context.Context, old *sight) (*sight, error) {
	l.one.Lock()
	defer l.one.Unlock()
	if newer := l.last(); newer != nil && newer != old && newer.isGood(l.plane.Plane) {
		return newer, nil
	}
	return l.see(ctx)
}

// last returns the kept sight, or nil.
func (l *live) last() *sight {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept
}

// see reads the control plane again, and keeps the result while tabs are open. The caller holds one.
func (l *live) see(ctx context.Context) (*sight, error) {
	changed := l.plane.Changed()
	s, err := l.plane.see(ctx)
	if err != nil {
		return nil, err
	}
	s.changed = changed
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lookers > 0 {
		l.kept = s
	}
	return s, nil
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// follow renders all topics after each change until ctx ends.
func (l *live) follow(ctx context.Context, fresh <-chan struct{}) {
	reported := make(chan struct{}, 1)
	go watchReports(ctx, l.plane.Client, reported)
	for ctx.Err() == nil {
		began := time.Now()
		s, again, err := l.render(ctx)
		if err != nil && ctx.Err() == nil {
			l.log.Warn("the page is not up to date", "err", err)
		}
		took := time.Since(began)
		wait(ctx, max(shortest, busy*took))
		var changed <-chan struct{}
		if s != nil {
			changed = s.changed
		}
		late := time.NewTicker(max(tick, idle*took))
		for over := false; !over; {
			over = true
			select {
			case <-ctx.Done():
			case <-changed:
			case <-reported:
			case <-fresh:
			case <-late.C:
				over = again || s.moved(l.plane.Plane)
			}
		}
		late.Stop()
	}
}

// render reads the control plane again and renders all topics. It says whether to do so again although nothing changes:
// because of an error, because a part could not be read, or because what is shown changes with time alone.
func (l *live) render(ctx context.Context) (s *sight, again bool, err error) {
	l.one.Lock()
	s, err = l.see(ctx)
	l.one.Unlock()
	if err != nil {
		return nil, true, err
	}
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.topics))
	l.mu.Unlock()
	again = s.lively()
	for _, o := range all {
		r, err := s.page(ctx, l.plane, o.target)
		if err != nil {
			return s, true, err
		}
		again = again || r.partial
		l.publish(o, r)
	}
	return s, again, nil
}

// publish notifies the tabs of a topic of a rendering, unless they have it.
func (l *live) publish(o *topic, r rendered) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.version == r.version {
		return
	}
	// This cannot fail: both are texts.
	body, _ := json.Marshal(map[string]string{"title": r.title, "main": string(r.main)})
	o.version, o.news = r.version, fmt.Appendf(nil, "id: %s\nevent: page\ndata: %s\n\n", r.version, body)
	for told := range o.tabs {
		poke(told)
	}
}

// latest returns the newest rendering of a topic.
func (l *live) latest(o *topic) (version string, news []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return o.version, o.news
}

// serve sends a tab each rendering that is not the one it has, until ctx ends.
func (l *live) serve(ctx context.Context, w http.ResponseWriter, t target, has string) {
	defer l.hold(ctx)()
	o, told, ok := l.enter(t)
	if !ok {
		http.Error(w, "too many tabs are open", http.StatusServiceUnavailable)
		return
	}
	defer l.leave(o, told)
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func(data []byte) error {
		// Each write has its own time: a browser that reads nothing holds nothing.
		if err := out.SetWriteDeadline(time.Now().Add(2 * beat)); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil { //nolint:gosec // made by html/template
			return err
		}
		return out.Flush()
	}
	alive := time.NewTicker(beat)
	defer alive.Stop()
	for err := send([]byte(": live\n\n")); err == nil; {
		select {
		case <-ctx.Done():
			return
		case <-alive.C:
			err = send([]byte(": live\n\n"))
		case <-told:
			if version, news := l.latest(o); version != "" && version != has {
				has, err = version, send(news)
			}
		}
	}
}

// watchReports signals told whenever a warning or an intent changes, which no controller keeps in memory.
func watchReports(ctx context.Context, c kubernetes.Interface, told chan struct{}) {
	watch := func(kind any, what *cache.ListWatch) {
		r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(what, c), kind, poked(told),
			cache.ReflectorOptions{Name: "page"})
		go r.RunWithContext(ctx)
	}
	events := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector = "type=" + corev1.EventTypeWarning
		return o
	}
	intents := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector = volume.LabelIntents
		return o
	}
	watch(&corev1.Event{}, listWatch(c.CoreV1().Events(metav1.NamespaceAll), events))
	watch(&corev1.ConfigMap{}, listWatch(c.CoreV1().ConfigMaps(metav1.NamespaceAll), intents))
}

// listWatch returns a ListWatch for the objects of a typed client that match a selection.
func listWatch[L runtime.Object](api interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}, selected func(metav1.ListOptions) metav1.ListOptions,
) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return api.List(ctx, selected(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.Watch(ctx, selected(o))
		},
	}
}

// poked is a store that keeps nothing, and signals a channel at each change.
type poked chan struct{}

func (p poked) poke() error {
	poke(p)
	return nil
}

// Add implements cache.ReflectorStore, as do the following.
func (p poked) Add(any) error { return p.poke() }

// Update pokes.
func (p poked) Update(any) error { return p.poke() }

// Delete pokes.
func (p poked) Delete(any) error { return p.poke() }

// Replace pokes.
func (p poked) Replace([]any, string) error { return p.poke() }

// Resync does nothing: nothing is kept.
func (p poked) Resync() error { return nil }

// wait returns after a time, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
