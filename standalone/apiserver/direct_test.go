package apiserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"
)

// through lets one request be handled and returns the transport's answer.
func through(ctx context.Context, t *testing.T, body io.Reader, h http.HandlerFunc) (*http.Response, error) {
	t.Helper()
	d := &direct{server: &Server{handler: h, done: make(chan struct{})}, user: &user.DefaultInfo{Name: "u"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://host:1/path?watch=true", body)
	if err != nil {
		t.Fatal(err)
	}
	return d.RoundTrip(req)
}

func read(t *testing.T, r *http.Response) (string, error) {
	t.Helper()
	data, err := io.ReadAll(r.Body)
	return string(data), errors.Join(err, r.Body.Close())
}

func TestDirectAnswerIsComplete(t *testing.T) {
	t.Parallel()
	r, err := through(t.Context(), t, strings.NewReader("question"), func(w http.ResponseWriter, r *http.Request) {
		asked, _ := io.ReadAll(r.Body)
		who, known, _ := ownProcess().AuthenticateRequest(r)
		if !known || who.User.GetName() != "u" || r.RequestURI != "/path?watch=true" || r.Host != "host:1" {
			t.Errorf("handler saw %v %v %s %s", who, known, r.RequestURI, r.Host)
		}
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		w.Header().Set("Late", "1")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(append(asked, " answered"...))
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") != "1" || r.Header.Get("Late") != "" ||
		r.ContentLength != int64(len("question answered")) {
		t.Errorf("%d %v %d", r.StatusCode, r.Header, r.ContentLength)
	}
	if body, err := read(t, r); body != "question answered" || err != nil {
		t.Errorf("body %q, %v", body, err)
	}
}

func TestDirectStreams(t *testing.T) {
	t.Parallel()
	next := make(chan string, 1)
	next <- "first "
	r, err := through(t.Context(), t, nil, func(w http.ResponseWriter, _ *http.Request) {
		for line := range next {
			_, _ = io.WriteString(w, line)
			w.(http.Flusher).Flush()
		}
		_, _ = io.WriteString(w, "last")
	})
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("first "))
	if _, err := io.ReadFull(r.Body, first); err != nil || string(first) != "first " || r.ContentLength != -1 {
		t.Errorf("%q, %v, length %d", first, err, r.ContentLength)
	}
	next <- "second "
	close(next)
	if rest, err := read(t, r); rest != "second last" || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
}

// TestDirectEndsWithItsClient: whatever the client does, the handler ends, and
// with it its goroutine; synctest fails when one is left waiting.
func TestDirectEndsWithItsClient(t *testing.T) {
	t.Parallel()
	streams := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, "event"); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
	waits := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	t.Run("body closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, err := through(t.Context(), t, nil, streams)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := io.ReadFull(r.Body, make([]byte, len("eventevent"))); err != nil {
				t.Error(n, err)
			}
			_ = r.Body.Close()
		})
	})
	t.Run("context ended while streaming", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			r, err := through(ctx, t, nil, streams)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if _, err := io.ReadAll(r.Body); !errors.Is(err, context.Canceled) {
				t.Errorf("reading on: %v", err)
			}
		})
	})
	t.Run("context ended before the answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := through(ctx, t, nil, waits); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	})
}

func TestDirectMayBreakOff(t *testing.T) {
	t.Parallel()
	_, err := through(t.Context(), t, nil, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if err == nil {
		t.Error("a handler that aborts immediately: no error")
	}
	r, err := through(t.Context(), t, nil, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	if err != nil {
		t.Fatal(err)
	}
	if body, err := read(t, r); body != "half" || err == nil {
		t.Errorf("%q, %v: want half of the answer and an error", body, err)
	}
}

func TestDirectAfterTheEnd(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	close(ended)
	d := &direct{server: &Server{handler: http.NotFoundHandler(), done: ended}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://host/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.RoundTrip(req); !errors.Is(err, errEnded) {
		t.Errorf("%v", err)
	}
}
