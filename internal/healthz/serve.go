package healthz

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof" //nolint:gosec // it also registers with a mux that no program of ours serves
	"time"

	"golang.org/x/net/netutil"
)

const (
	// maxConnections is how many connections are open at the same time; further ones wait until one is closed.
	maxConnections = 128
	// readLimit is how long a client may take to send its request, and answerLimit how long to receive the answer.
	readLimit, answerLimit = 5 * time.Second, time.Minute
	// maxHeader is the size limit of a request, in bytes.
	maxHeader = 8 << 10
)

// Serve listens at an address, such as ":9808", and answers requests until ctx ends. It fails if it cannot listen.
func Serve(ctx context.Context, address string, h http.Handler, log *slog.Logger) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve health at %s: %w", address, err)
	}
	log.Info("health is served", "address", l.Addr())
	serve(ctx, l, h)
	return nil
}

// serve accepts connections until ctx ends. Each has one request, so that idle ones do not take the place of others.
func serve(ctx context.Context, l net.Listener, h http.Handler) {
	server := &http.Server{
		Handler: h, ReadTimeout: readLimit, WriteTimeout: answerLimit, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // it has what clients send
	}
	server.SetKeepAlivesEnabled(false)
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	_ = server.Serve(netutil.LimitListener(l, maxConnections)) // it ends with ctx; errors that may pass, it bears
}

// Paths are what answers for each path.
type Paths map[string]http.Handler

// ServeHTTP answers a request.
func (p Paths) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := p[r.URL.Path]; h != nil {
		h.ServeHTTP(w, r)
		return
	}
	Text(w, http.StatusNotFound, "404 page not found")
}

// Text answers with a plain text.
func Text(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // a client that has gone needs no answer
}

// AddProfiles adds the profiles of the program below /debug/pprof/, as go tool pprof reads them. One that watches the
// program may take a minute.
func AddProfiles(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
}
