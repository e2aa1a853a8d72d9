package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/etcd"
)

// ErrPortTaken says that somebody else listens where the server should.
var ErrPortTaken = errors.New("port taken")

// Options says where and how the server runs.
type Options struct {
	// DataDir holds everything that lasts.
	DataDir string
	// Listen is host:port; port 0 takes a free one.
	Listen string
	// Names are further host names and addresses by which others reach the
	// server: its certificate holds for them too.
	Names []string
	// RBAC are ClusterRoles and ClusterRoleBindings that the server makes sure
	// of at every start.
	RBAC []runtime.Object
	// Version is that of this program: what another one has left is backed up
	// before it is changed. Empty leaves that out, for tests only.
	Version string
	// Log receives what is worth telling; nil is nobody.
	Log *slog.Logger
	// EncryptionConfig is the file that says how Secrets are encrypted, in
	// Kubernetes' form; "" has volplane make a key of its own.
	EncryptionConfig string
	// ForgetUnreadable deletes Secrets whose key is gone.
	ForgetUnreadable bool
	// Collects says that a garbage collector runs beside the server, and deletions
	// may wait for it.
	Collects bool
	// NoSync leaves out fsync, for tests only.
	NoSync bool
	// Quota is the size of the database at which etcd refuses writes; 0 is what
	// fits the disk.
	Quota int64
}

// etcd returns the options of the member that keeps the objects.
func (o Options) etcd(dir string) etcd.Options {
	e := etcd.Options{Dir: filepath.Join(dir, "etcd"), NoSync: o.NoSync, Quota: o.Quota}
	if !o.NoSync {
		e.Reserve = filepath.Join(dir, datadir.Reserve)
	}
	return e
}

// listen takes the address before anything expensive is started.
func (o Options) listen() (net.Listener, error) {
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w; give host:port with --listen", o.Listen, err)
	}
	if net.ParseIP(host) == nil && host != "localhost" {
		return nil, fmt.Errorf("address %q: %s is not an IP address; give host:port with --listen", o.Listen, host)
	}
	l, err := net.Listen("tcp", o.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: somebody listens at %s already; give another port with --listen, port 0 takes a free "+
			"one (%s is taken)", ErrPortTaken, o.Listen, port)
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", o.Listen, err)
	}
	return l, nil
}
