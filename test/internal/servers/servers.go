package servers

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
)

// pool holds the running API servers that no test uses.
type pool struct {
	mu   sync.Mutex
	idle []*server
	// stops says that Main will stop them.
	stops bool
}

// shared is the pool of the tests of this process.
var shared pool

// Main runs the tests of a package that borrow API servers, and returns the exit code. TestMain calls it.
func Main(m *testing.M) int {
	shared.stops = true
	code := m.Run()
	var stopped sync.WaitGroup
	for _, s := range shared.idle {
		stopped.Go(s.stop)
	}
	stopped.Wait()
	return code
}

// Borrow returns an API server for this test alone. It has volplane's roles, and the objects that a new API
// server has.
func Borrow(t testing.TB) *apiserver.Server {
	t.Helper()
	if !shared.stops {
		t.Fatal("the package needs a TestMain that calls servers.Main")
	}
	s := shared.take()
	if s == nil {
		var err error
		if s, err = start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := s.empty(context.WithoutCancel(t.Context())); err != nil || t.Failed() {
			if err != nil {
				t.Log("the API server is not lent again: ", err)
			}
			s.stop()
			return
		}
		shared.put(s)
	})
	return s.Server
}

// take returns the server that has been idle for the longest time, or nil.
func (p *pool) take() *server {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == 0 {
		return nil
	}
	s := p.idle[0]
	p.idle = p.idle[1:]
	return s
}

func (p *pool) put(s *server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, s)
}

// server is a running API server.
type server struct {
	*apiserver.Server
	dir string
	contents
}

func start(ctx context.Context) (_ *server, err error) {
	dir, err := standalonetest.MakeDir()
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir}
	s.Server, err = apiserver.Start(ctx, apiserver.Options{
		DataDir: dir, Listen: "127.0.0.1:0", RBAC: app.RBAC(), NoSync: true,
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if s.contents, err = contentsOf(ctx, s.AdminConfig()); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *server) stop() {
	s.Stop()
	_ = os.RemoveAll(s.dir)
}
