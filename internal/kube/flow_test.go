package kube

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/client-go/rest"
)

// roundTrip is a server.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestFlow: writes of all clients of a process wait for their turn, reads and
// watches do not, and a write whose caller has gone does not wait.
func TestFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var under atomic.Int64
		answer := make(chan struct{})
		server := roundTrip(func(*http.Request) (*http.Response, error) {
			under.Add(1)
			<-answer
			under.Add(-1)
			return &http.Response{StatusCode: http.StatusOK}, nil
		})
		flow := NewFlow()
		var clients [2]http.RoundTripper
		for i := range clients {
			config := &rest.Config{}
			flow.Limit(config)
			clients[i] = config.WrapTransport(server)
		}
		ask := func(ctx context.Context, i int, method string) <-chan error {
			req, err := http.NewRequestWithContext(ctx, method, "http://server/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				got, err := clients[i%2].RoundTrip(req)
				if err == nil && got.Body != nil {
					err = got.Body.Close()
				}
				ended <- err
			}()
			return ended
		}
		const writes = 2*maxWrites + 50
		for i := range writes {
			ask(t.Context(), i, []string{http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete}[i%4])
		}
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		gone := ask(ctx, 0, http.MethodPut)
		synctest.Wait()
		if n := under.Load(); n != maxWrites {
			t.Errorf("%d writes are under way", n)
		}
		ask(t.Context(), 0, http.MethodGet)
		synctest.Wait()
		if n := under.Load(); n != maxWrites+1 {
			t.Error("a read waits")
		}
		leave()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("who has gone got %v", err)
		}
		for range writes + 1 {
			answer <- struct{}{}
		}
		synctest.Wait()
		if n := under.Load(); n != 0 {
			t.Errorf("%d are under way at the end", n)
		}
	})
}
