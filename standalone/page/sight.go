package page

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/since"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/gather"
)

// sight is the control plane at one moment, which all pages of that moment show.
type sight struct {
	state.Objects
	walk      why.Walk
	times     since.Times
	causes    []survey.Cause
	usage     map[string]Usage
	connected map[string]bool
	pace      map[string]float64
	// held is the state of what waits, by namespace and subject.
	held map[survey.Held]chain.State
	// changed is closed when it is not so any more.
	changed <-chan struct{}

	mu sync.Mutex
	// pages are those that were rendered of it, by their addresses.
	pages map[string]rendered
}

// see reads the control plane.
func (p Plane) see(ctx context.Context) (*sight, error) {
	o, err := p.Objects(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the control plane: %w", err)
	}
	w := why.Of(o)
	s := &sight{
		Objects: o, walk: w, times: since.TimesIn(o, w.View).WithoutTries(), usage: p.Usage(), connected: p.Connected(),
		pace: p.Pace(), held: map[survey.Held]chain.State{}, pages: map[string]rendered{},
	}
	s.causes = survey.Causes(s.walk)
	slices.SortStableFunc(s.causes, func(a, b survey.Cause) int { return cmp.Compare(rank(a.State), rank(b.State)) })
	for _, c := range slices.Backward(s.causes) {
		for _, held := range c.Waits {
			s.held[held] = c.State
		}
	}
	return s, nil
}

// isGood says whether it may be shown: it is new, or nothing has changed since.
func (s *sight) isGood(p Plane) bool { return time.Since(s.Now) < fresh || !s.isOver() && !s.moved(p) }

// moved says whether this host's figures have changed. They are not objects, so no watch event reports them.
func (s *sight) moved(p Plane) bool {
	return !maps.Equal(s.connected, p.Connected()) || !maps.Equal(s.usage, p.Usage())
}

// isOver says whether something has changed since.
func (s *sight) isOver() bool {
	select {
	case <-s.changed:
		return true
	default:
		return false
	}
}

// page returns a page of the sight, which is rendered once for all requests: rendering completes even if the first
// client goes away, and is repeated if a part could not be read.
func (s *sight) page(ctx context.Context, p renderer, t target) (rendered, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.pages[t.address]; ok {
		return r, nil
	}
	r, err := p.render(context.WithoutCancel(ctx), s, t)
	if err == nil && !r.partial && len(s.pages) < mostTabs {
		s.pages[t.address] = r
	}
	return r, err
}

// lively says whether what is shown changes with time alone: the pace of calls.
func (s *sight) lively() bool {
	for _, pace := range s.pace {
		if pace > 0 {
			return true
		}
	}
	return false
}

// since returns since when a link does not hold, or "".
func (s *sight) since(ns string, c chain.Chain, l chain.Link) string {
	if at := s.times.Of(ns, c, l).Since; !at.IsZero() {
		return chain.Moment(at)
	}
	return ""
}

// uses returns all uses of claims, by node, namespace and claim.
func (s *sight) uses() []gather.Use {
	var out []gather.Use
	for _, p := range s.Pods {
		out = append(out, gather.UsesOf(p)...)
	}
	slices.SortFunc(out, func(a, b gather.Use) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim),
			cmp.Compare(a.Pod, b.Pod))
	})
	return out
}

// stateOf returns the state of an object that may wait.
func (s *sight) stateOf(o object) chain.State {
	return cmp.Or(s.held[survey.Held{Namespace: o.ns, Subject: o.subject()}], chain.OK)
}

// tally counts words, as in "2 Bound, 1 Pending"; "none" for an empty list.
func tally[T any](all []T, word func(T) string) string {
	counts := map[string]int{}
	for _, o := range all {
		counts[cmp.Or(clean(word(o)), "unknown")]++
	}
	var parts []string
	for _, w := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[w], w))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// ready returns what a node says of itself.
func ready(n *corev1.Node) chain.State {
	if nodelife.Ready(n) {
		return chain.OK
	}
	return chain.Problem
}
