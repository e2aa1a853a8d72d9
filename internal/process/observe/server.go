package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the server: a client that is slow, or sends much, holds nothing. A profile takes as long as it is asked
// to, and has no limit for its answer.
const (
	headerLimit  = 10 * time.Second
	bodyLimit    = 30 * time.Second
	idleLimit    = 2 * time.Minute
	headerBytes  = 16 << 10
	scrapeLimit  = 20 * time.Second
	scrapesLimit = 4
	goodbye      = 2 * time.Second
)

// Address is one at which a server listens, and what is asked of it there.
type Address struct {
	// Address is where it listens, such as ":8080".
	Address string
	// Flag is the flag that says so, for errors; empty means "--http-endpoint".
	Flag string
	// MetricsPath is the path of the metrics; empty means "/metrics".
	MetricsPath string
	// LeaderHealth serves /healthz/leader-election.
	LeaderHealth bool
	// Pprof serves /debug/pprof.
	Pprof bool
	// Health serves at /health whether the process is ready, and WithoutMetrics serves no metrics.
	Health, WithoutMetrics bool
}

// Check is one thing that must be so for a process to be ready.
type Check struct {
	// Name is one word.
	Name string
	// Ready returns why it is not so; nil if it is.
	Ready func() error
}

// Server serves the counts and the health of a process at several addresses.
type Server struct {
	listeners []net.Listener
	answers   http.Handler
	log       *slog.Logger
}

// Listen listens at the addresses of the options. Each of them serves what any of them has. Serve must be called, or
// Close.
func Listen(all []Address, r *Registry, ready []Check, log *slog.Logger) (*Server, error) {
	s := &Server{answers: answers(all, r, ready, log), log: log}
	for _, o := range all {
		l, err := net.Listen("tcp", o.Address)
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("%s %s: %w", cmp.Or(o.Flag, "--http-endpoint"), o.Address, err)
		}
		s.listeners = append(s.listeners, l)
	}
	return s, nil
}

// Close ends a server that does not serve.
func (s *Server) Close() {
	for _, l := range s.listeners {
		_ = l.Close()
	}
}

// Serve answers requests until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{
		Handler: s.answers, ReadHeaderTimeout: headerLimit, ReadTimeout: bodyLimit, IdleTimeout: idleLimit,
		MaxHeaderBytes: headerBytes, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		s.log.Info("metrics and health are served", "address", l.Addr().String())
		go func() { ended <- server.Serve(l) }()
	}
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-ended:
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close()
	}
	if failed != nil && !errors.Is(failed, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", failed)
	}
	return nil
}

// answers returns what all addresses serve.
func answers(all []Address, r *Registry, ready []Check, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	var paths []string
	for _, o := range all {
		path := "/" + strings.TrimPrefix(cmp.Or(o.MetricsPath, "/metrics"), "/")
		if !o.WithoutMetrics && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	counts := promhttp.InstrumentMetricHandler(r.all, Counts(r, log))
	answer(mux, "/livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	answer(mux, "/readyz", func(w http.ResponseWriter, req *http.Request) { readiness(w, req, ready) })
	if slices.ContainsFunc(all, func(o Address) bool { return o.Health }) {
		answer(mux, "/health", func(w http.ResponseWriter, req *http.Request) { readiness(w, req, ready) })
	}
	if slices.ContainsFunc(all, func(o Address) bool { return o.LeaderHealth }) {
		answer(mux, "/healthz/leader-election", func(w http.ResponseWriter, _ *http.Request) { leadership(w, r.wellLed()) })
	}
	if slices.ContainsFunc(all, func(o Address) bool { return o.Pprof }) {
		answer(mux, "/debug/pprof/", pprof.Index)
		answer(mux, "/debug/pprof/cmdline", pprof.Cmdline)
		answer(mux, "/debug/pprof/profile", pprof.Profile)
		answer(mux, "/debug/pprof/symbol", pprof.Symbol)
		answer(mux, "/debug/pprof/trace", pprof.Trace)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// The path of metrics is a user's word, which a ServeMux would read as a pattern.
		if slices.Contains(paths, req.URL.Path) {
			counts.ServeHTTP(w, req)
			return
		}
		mux.ServeHTTP(w, req)
	})
}

func answer(mux *http.ServeMux, path string, f http.HandlerFunc) { mux.Handle(path, f) }

// Counts returns what answers with all counts. An error in one of them does not hide the others.
func Counts(r *Registry, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(r.Gatherer(), promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapesLimit, Timeout: scrapeLimit, EnableOpenMetrics: true,
	})
}

// leadership answers as upstream's sidecars do.
func leadership(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, "internal server error: "+err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, "ok")
}

// readiness answers as an API server does: "ok", or what is not ready; with the parameter verbose, all there is.
func readiness(w http.ResponseWriter, req *http.Request, ready []Check) {
	text, failed := "", false
	for _, c := range ready {
		if err := c.Ready(); err != nil {
			failed = true
			text += fmt.Sprintf("[-]%s failed: %s\n", c.Name, err)
			continue
		}
		text += fmt.Sprintf("[+]%s ok\n", c.Name)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, verbose := req.URL.Query()["verbose"]
	switch {
	case failed:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, text+"readyz check failed\n")
	case verbose:
		fmt.Fprint(w, text+"readyz check passed\n")
	default:
		fmt.Fprint(w, "ok")
	}
}
