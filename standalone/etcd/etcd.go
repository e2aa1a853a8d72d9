package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

const (
	// tick is far shorter than a cluster's: a single member has no rival whose
	// election it must wait for, and the start waits for its own.
	tick = 20 * time.Millisecond
	// startLimit bounds a start with a long log to read.
	startLimit = time.Minute
	quota      = 2 << 30
	// socketNameLimit is what the kernel takes as the name of a unix socket.
	socketNameLimit = 107
	name            = "volplane"
)

// ErrTooLong says that the directory's path leaves no room for the socket's
// name. Another attempt with the same path ends the same way.
var ErrTooLong = errors.New("path too long")

// Options says where etcd keeps its data.
type Options struct {
	Dir string
	// NoSync leaves out fsync, for tests only.
	NoSync bool
}

// Server is a running member.
type Server struct{ etcd *embed.Etcd }

// Start runs etcd over a directory and returns when it serves.
func Start(ctx context.Context, o Options) (*Server, error) {
	if n := len(o.socket()); n > socketNameLimit {
		return nil, fmt.Errorf("%w: the socket %s has a name of %d bytes, %d are possible; give a shorter --data-dir", ErrTooLong, o.socket(), n, socketNameLimit)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	if err := os.Remove(o.socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	e, err := embed.StartEtcd(o.config())
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", o.Dir, err)
	}
	select {
	case <-e.Server.ReadyNotify():
		return &Server{etcd: e}, nil
	case err = <-e.Err():
	case <-time.After(startLimit):
		err = errors.New("not ready in time")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	e.Close()
	return nil, fmt.Errorf("start etcd in %s: %w", o.Dir, err)
}

func (o Options) socket() string { return filepath.Join(o.Dir, "client.sock") }

func (o Options) config() *embed.Config {
	client := url.URL{Scheme: "unix", Path: o.socket()}
	// A peer address must be named though there is no peer and no listener.
	peer := url.URL{Scheme: "http", Host: "localhost:2380"}
	c := embed.NewConfig()
	c.Name, c.Dir = name, filepath.Join(o.Dir, "member")
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{peer}
	c.InitialCluster = name + "=" + peer.String()
	c.EnableGRPCGateway = false
	c.TickMs, c.ElectionMs = uint(tick.Milliseconds()), uint(5*tick.Milliseconds())
	c.AutoCompactionMode, c.AutoCompactionRetention = "periodic", "5m"
	c.QuotaBackendBytes = quota
	// etcd reports an ordinary stop and a fresh start as errors; what really
	// stops it comes out of Err.
	c.LogLevel, c.LogOutputs = "panic", []string{"stderr"}
	c.UnsafeNoFsync = o.NoSync
	return c
}

// Endpoint returns the address for clients in this process.
func (s *Server) Endpoint() string {
	return "unix://" + s.etcd.Config().ListenClientUrls[0].Path
}

// Err tells of a failure while running, such as a full disk.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Stop ends the member after everything it confirmed is on disk.
func (s *Server) Stop() { s.etcd.Close() }
