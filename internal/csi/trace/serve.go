package trace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/process/socket"
)

// Limits of the requests of commands.
const (
	maxRequests  = 32
	maxRequest   = 16 << 10
	headerLimit  = 5 * time.Second
	writeLimit   = 10 * time.Second
	idleLimit    = 30 * time.Second
	maxHeader    = 8 << 10
	contentLines = "application/x-ndjson"
)

// Trace has the calls and the faults of one process.
type Trace struct {
	calls  *ring
	faults *faults
}

// New returns a Trace without calls and faults.
func New() *Trace { return &Trace{newRing(), newFaults()} }

// Options are the options of each connection to a driver whose calls are traced.
func (t *Trace) Options() []csi.Option {
	return []csi.Option{csi.WithTrace(t.calls.add), csi.WithFault(t.faults.call)}
}

// Socket returns the path of the socket of the process that has a node agent with this root directory.
func Socket(root string) string { return filepath.Join(root, "trace", "trace.sock") }

// Serve answers commands at a socket until ctx ends. An error is only logged: a failing trace must not end the process.
func (t *Trace) Serve(ctx context.Context, path string, log *slog.Logger) error {
	if err := t.serve(ctx, path, log); err != nil {
		log.Error("calls of drivers cannot be traced", "socket", path, "err", err)
	}
	<-ctx.Done()
	return nil
}

func (t *Trace) serve(ctx context.Context, path string, log *slog.Logger) error {
	l, err := socket.Listen(ctx, path)
	if err != nil {
		return err
	}
	free := make(chan struct{}, maxRequests)
	server := &http.Server{
		Handler: limited(free, t.requests(log)), ReadHeaderTimeout: headerLimit, ReadTimeout: idleLimit,
		IdleTimeout: idleLimit, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// limited refuses requests while there are too many.
func limited(free chan struct{}, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case free <- struct{}{}:
			defer func() { <-free }()
			next.ServeHTTP(w, r)
		default:
			http.Error(w, "too many commands at the same time: end one of them", http.StatusServiceUnavailable)
		}
	})
}

func (t *Trace) requests(log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /calls/{driver}", t.serveCalls)
	mux.HandleFunc("GET /faults", t.serveFaults)
	mux.HandleFunc("PUT /faults/{driver}", func(w http.ResponseWriter, r *http.Request) {
		if err := t.plant(w, r, log); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	return mux
}

func (t *Trace) serveCalls(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", contentLines)
	out := http.NewResponseController(w)
	if out.SetReadDeadline(time.Time{}) != nil {
		return // the connection is gone
	}
	// A follower that does not read must not hold the request.
	_ = t.calls.follow(r.Context(), r.PathValue("driver"), r.URL.Query().Has("follow"), func(line []byte) error {
		if err := out.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
			return err
		}
		if len(line) == 0 {
			return out.Flush()
		}
		_, err := w.Write(line)
		return err
	})
}

func (t *Trace) serveFaults(w http.ResponseWriter, _ *http.Request) {
	all := []Planted{}
	names := t.faults.names()
	slices.Sort(names)
	for _, name := range names {
		all = append(all, t.faults.list(name)...)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(all)
}

// plantRequest is the body of a request to plant faults; without faults, those of the driver are cleared.
type plantRequest struct {
	Faults  string  `json:"faults"`
	Seconds float64 `json:"seconds"`
}

func (t *Trace) plant(w http.ResponseWriter, r *http.Request, log *slog.Logger) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		return err
	}
	var said plantRequest
	if err := json.Unmarshal(body, &said); err != nil {
		return fmt.Errorf("the request is not understood: %w", err)
	}
	name := r.PathValue("driver")
	if err := csi.CheckName(name); err != nil {
		return err
	}
	if said.Faults == "" {
		log.Info("planted faults are cleared", "driver", name)
		return t.faults.plant(name, nil, 0)
	}
	wanted, err := ParseFaults(said.Faults)
	if err != nil {
		return err
	}
	life := time.Duration(said.Seconds * float64(time.Second))
	if err := t.faults.plant(name, wanted, life); err != nil {
		return err
	}
	log.Warn("faults are planted between volplane and a driver", "driver", name, "faults", said.Faults, "for", life)
	return nil
}
