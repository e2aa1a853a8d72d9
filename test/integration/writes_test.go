package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// write is one request that changes something.
type write struct {
	role, method, path string
	body               []byte
}

func (w write) String() string { return w.role + ": " + w.method + " " + w.path }

// about says whether a write names an object.
func (w write) about(name string) bool {
	return strings.Contains(w.path, name) || bytes.Contains(w.body, []byte(name))
}

// writes notes the controllers' requests that change something, and lets a test
// get in between.
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
			w.note(one)
			return next.RoundTrip(r)
		})
	}
}

func (w *writes) note(one write) {
	w.mu.Lock()
	w.all = append(w.all, one)
	before := w.before
	w.mu.Unlock()
	if before != nil {
		before(one)
	}
}

// onWrite has f called before each write is sent; it may be called
// concurrently.
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
