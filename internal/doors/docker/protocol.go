package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	// bodyLimit is more than any request needs.
	bodyLimit = 64 << 10
	// long and short are less than docker's deadlines of two minutes for Create and Mount, and of one for other calls: the
	// user is to see what is waited for, and not that a deadline has passed.
	long  = 110 * time.Second
	short = 50 * time.Second
	// endLimit bounds the time in which calls that run are answered when the door ends.
	endLimit = 5 * time.Second
	// callLimit is how many calls of a kind run at the same time; others wait.
	callLimit = 128
)

// request has the fields of all requests.
type request struct {
	Name string
	ID   string
	Opts map[string]string
}

// entry is one volume in an answer.
type entry struct {
	Name       string
	Mountpoint string         `json:",omitempty"`
	CreatedAt  string         `json:",omitempty"`
	Status     map[string]any `json:",omitempty"`
}

// answer has the fields of all answers. Err is always there, as docker's own plugins have it.
type answer struct {
	Implements   []string      `json:",omitempty"`
	Capabilities *capabilities `json:",omitempty"`
	Volume       *entry        `json:",omitempty"`
	Volumes      []entry       `json:",omitempty"`
	Mountpoint   string        `json:",omitempty"`
	Err          string
}

type capabilities struct{ Scope string }

// call answers a request, or fails with an error that the user of the engine reads.
type call func(ctx context.Context, r request) (answer, error)

// served is a call with its time limit. The calls that wait for other programs have a limit of their own: a dead
// driver does not block calls that need no driver.
type served struct {
	run   call
	limit time.Duration
	waits bool
}

// calls returns what an engine may call.
func (d *Door) calls() map[string]served {
	return map[string]served{
		"/Plugin.Activate":           {d.activate, short, false},
		"/VolumeDriver.Capabilities": {d.capabilities, short, false},
		"/VolumeDriver.Create":       {d.named(d.create), long, true},
		"/VolumeDriver.Remove":       {d.named(d.remove), short, true},
		"/VolumeDriver.Mount":        {d.named(d.mount), long, true},
		"/VolumeDriver.Unmount":      {d.named(d.unmount), short, false},
		"/VolumeDriver.Path":         {d.named(d.path), short, false},
		"/VolumeDriver.Get":          {d.named(d.get), short, false},
		"/VolumeDriver.List":         {d.synced(d.list), short, false},
	}
}

// named wraps a call about one volume.
func (d *Door) named(next call) call {
	return d.synced(func(ctx context.Context, r request) (answer, error) {
		if err := checkName(r.Name); err != nil {
			return answer{}, err
		}
		if len(r.ID) > idLimit {
			return answer{}, fmt.Errorf("the ID has %d bytes, %d are possible", len(r.ID), idLimit)
		}
		return next(ctx, r)
	})
}

// synced wraps a call that needs to know the claims: after a start, it waits for the API server.
func (d *Door) synced(next call) call {
	return func(ctx context.Context, r request) (answer, error) {
		select {
		case <-d.ready:
			return next(ctx, r)
		case <-ctx.Done():
			return answer{}, errors.New("volplane has not reached its API server yet: is the control plane running?")
		}
	}
}

// web returns the HTTP side of all calls.
func (d *Door) web() http.Handler {
	mux, waiting, hot := http.NewServeMux(), make(chan struct{}, callLimit), make(chan struct{}, callLimit)
	for path, c := range d.calls() {
		free := hot
		if c.waits {
			free = waiting
		}
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), c.limit)
			defer cancel()
			var got answer
			var err error
			select {
			case free <- struct{}{}:
				got, err = serve(ctx, w, r, c.run)
				<-free
			case <-ctx.Done():
				err = fmt.Errorf("%d other calls are being answered", callLimit)
			}
			if err != nil && !errors.Is(err, errNoVolume) {
				d.log.Info("docker: a call has failed", "call", path, "err", err)
			}
			reply(w, got, err)
		})
	}
	return mux
}

// serve reads a request and answers it. The body is read to its end: only then does the server notice
// that the caller has disconnected.
func serve(ctx context.Context, w http.ResponseWriter, r *http.Request, run call) (answer, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
	if err != nil {
		return answer{}, fmt.Errorf("read the request: %w", err)
	}
	var q request
	if len(body) > 0 {
		if err := json.Unmarshal(body, &q); err != nil {
			return answer{}, fmt.Errorf("read the request: %w", err)
		}
	}
	return run(ctx, q)
}

// reply writes an answer. Docker looks at Err, and podman only at the status.
func reply(w http.ResponseWriter, a answer, err error) {
	w.Header().Set("Content-Type", "application/vnd.docker.plugins.v1.2+json")
	if err != nil {
		a = answer{Err: err.Error()}
		w.WriteHeader(http.StatusInternalServerError)
	}
	// An engine that has disconnected does not read the answer, and calls again.
	_ = json.NewEncoder(w).Encode(a)
}

// serveHTTP answers calls until ctx ends. Calls that run then fail, and the engine repeats or reports them.
func (d *Door) serveHTTP(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: d.web(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
		ReadTimeout: 30 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	// An engine repeats a call whose connection ends without an answer, but without its arguments.
	server.SetKeepAlivesEnabled(false)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
		defer cancel()
		_ = errors.Join(server.Shutdown(limited), server.Close())
	})
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return fmt.Errorf("serve docker: %w", err)
	}
	<-ended
	return nil
}
