package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// write is one request that changes an object.
type write struct {
	role, method, path string
	body               []byte
	// code is the HTTP status of the answer, 0 until there is one.
	code int
}

func (w write) String() string { return w.role + ": " + w.method + " " + w.path }

// about says whether a write names an object.
func (w write) about(name string) bool {
	return strings.Contains(w.path, name) || bytes.Contains(w.body, []byte(name))
}

// writes records the controllers' requests that change something, and lets a test act before each.
type writes struct {
	mu     sync.Mutex
	all    []write
	before func(write)
}

// of wraps the transport of one role.
func (w *writes) of(role string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet {
				return next.RoundTrip(r)
			}
			one := write{role: role, method: r.Method, path: r.URL.Path}
			if r.GetBody != nil {
				body, err := r.GetBody()
				if err != nil {
					return nil, fmt.Errorf("read request: %w", err)
				}
				if one.body, err = io.ReadAll(body); err != nil {
					return nil, fmt.Errorf("read request: %w", err)
				}
			}
			n := w.note(one)
			answer, err := next.RoundTrip(r)
			if err == nil {
				w.answered(n, answer.StatusCode)
			}
			return answer, err
		})
	}
}

func (w *writes) note(one write) (n int) {
	w.mu.Lock()
	n = len(w.all)
	w.all = append(w.all, one)
	before := w.before
	w.mu.Unlock()
	if before != nil {
		before(one)
	}
	return n
}

func (w *writes) answered(n, code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[n].code = code
}

// onWrite has f called before each write is sent, possibly concurrently.
func (w *writes) onWrite(f func(write)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = f
}

// since returns the writes after the first n.
func (w *writes) since(n int) []write {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all[n:])
}

type tripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestWritesOfManyVolumes: the number of writes for a hundred volumes at the same time, from the claims to
// Bound, and for their deletion.
func TestWritesOfManyVolumes(t *testing.T) {
	const n = 100
	p := newPlaneAlone(t)
	p.createClass("fast")
	name := func(i int) string { return fmt.Sprint("c", i) }
	p.count(t, "made", n, 4.1, 1.02, func() {
		var all errgroup.Group
		for i := range n {
			all.Go(func() error {
				_, err := p.client.CoreV1().PersistentVolumeClaims("default").Create(p.ctx, claimOf(name(i), "fast"),
					metav1.CreateOptions{})
				return err
			})
		}
		p.must(all.Wait())
		for i := range n {
			p.waitForBound(name(i))
		}
		p.waitForSettled()
		// Events for users are written when there is time.
		p.eventually(func() string {
			told, err := p.client.CoreV1().Events("default").List(p.ctx,
				metav1.ListOptions{FieldSelector: "reason=" + string(volume.ReasonProvisioningSucceeded)})
			p.must(err)
			if got := len(told.Items); got < n {
				return fmt.Sprint("people are told of ", got)
			}
			return ""
		})
	})
	p.count(t, "deleted", n, 4, 0.02, func() {
		for i := range n {
			p.deleteClaim(name(i))
		}
		p.nothingLeft()
	})
	for _, method := range []string{"CreateVolume", "DeleteVolume"} {
		if calls := p.calls(method); calls != n {
			t.Errorf("%d calls of %s for %d volumes", calls, method, n)
		}
	}
}

// count compares the number of writes of the controllers while f runs with bounds per volume.
func (p *plane) count(t *testing.T, what string, n int, most, mostEvents float64, f func()) {
	t.Helper()
	from := len(p.writes.since(0))
	f()
	kinds := map[string]int{}
	var good, failed, events int
	for _, w := range p.writes.since(from) {
		kind := kindOf(w)
		switch {
		case strings.Contains(kind, "events"):
			events++
			continue
		case w.code >= http.StatusBadRequest:
			failed++
			kind += fmt.Sprint(" ", w.code)
		default:
			good++
		}
		kinds[kind]++
	}
	t.Logf("%d volumes %s: %d writes, %d failed, %d events: %v", n, what, good, failed, events, kinds)
	if float64(good) > most*float64(n) || float64(failed) >= 0.02*float64(n) || float64(events) > mostEvents*float64(n) {
		t.Errorf("%d volumes %s cost %d writes, %d failed ones and %d events: %v", n, what, good, failed, events, kinds)
	}
}

// kindOf returns a text with the writer, the verb and the resource of a write.
func kindOf(w write) string {
	parts := strings.Split(strings.Trim(w.path, "/"), "/")
	parts = slices.DeleteFunc(parts, func(s string) bool {
		return s == "api" || s == "v1" || s == "namespaces" || s == "default" || s == "kube-system"
	})
	kind := parts[0]
	if len(parts) > 2 {
		kind += "/" + parts[2]
	}
	return w.role + " " + w.method + " " + kind
}

// TestConflicts: another client changes each object just before a controller first writes it. Everything
// succeeds in the end, and nothing is made twice.
func TestConflicts(t *testing.T) {
	p := newPlane(t)
	var mu sync.Mutex
	first := map[string]bool{}
	conflicts := 0
	p.writes.onWrite(func(w write) {
		kind, name := objectOf(w.path)
		mu.Lock()
		before := first[w.String()]
		first[w.String()] = true
		mu.Unlock()
		if before || w.method != "PUT" {
			return
		}
		body := fmt.Appendf(nil, `{"metadata":{"annotations":{"changed":%q}}}`, w.String())
		var err error
		switch kind {
		case "persistentvolumes":
			_, err = p.client.CoreV1().PersistentVolumes().Patch(p.ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
		case "persistentvolumeclaims":
			_, err = p.client.CoreV1().PersistentVolumeClaims("default").Patch(p.ctx, name, types.MergePatchType, body,
				metav1.PatchOptions{})
		default:
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			conflicts++
		}
	})
	p.createClass("fast")
	p.createVolume("v", "2Gi", "")
	p.createClaim("static", "")
	p.createClaim("dynamic", "fast")
	p.waitForClaimPhase("static", corev1.ClaimBound, "v")
	p.waitForBound("dynamic")
	p.waitForSettled()
	if n := p.calls("CreateVolume"); n != 1 {
		t.Errorf("%d calls of CreateVolume", n)
	}
	p.deleteClaim("static")
	p.deleteClaim("dynamic")
	p.waitForVolumePhase("v", corev1.VolumeReleased)
	p.nothingLeft("v")
	if conflicts < 8 {
		t.Errorf("only %d writes met a change", conflicts)
	}
}

// objectOf returns the resource and the name in the path of a request.
func objectOf(path string) (resource, name string) {
	parts := strings.Split(path, "/")
	if i := slices.Index(parts, "namespaces"); i > 0 && len(parts) > i+2 {
		parts = parts[i+2:]
	} else if len(parts) > 3 {
		parts = parts[3:]
	}
	if len(parts) < 2 {
		return parts[0], ""
	}
	return parts[0], parts[1]
}
