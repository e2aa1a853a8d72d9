package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/features"

	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/etcd"
	"volplane.dev/volplane/standalone/external"
)

// ErrPortTaken is the error of a port at which another process listens.
var ErrPortTaken = errors.New("port taken")

const (
	// fewestFiles is how many files a control plane must be able to have open.
	fewestFiles = 4096
	// mostConns is how many connections are open at most.
	mostConns = 4096
)

// connections returns how many connections may be open: no more than half of the files that this process can open, so
// clients never exhaust the descriptors that the drivers need, and etcd, which fails without one.
func connections() (int, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if files.Cur < fewestFiles {
		return 0, fmt.Errorf("this process can open %d files, and a control plane needs %d: raise the limit, which is "+
			"LimitNOFILE= of a unit of systemd, --ulimit nofile= of a container, and ulimit -n of a shell", files.Cur,
			fewestFiles)
	}
	return int(min(files.Cur/2, mostConns)), nil
}

// Options configure the server.
type Options struct {
	// DataDir is the directory of all persistent data.
	DataDir string
	// Listen is the address, host:port; port 0 chooses a free port.
	Listen string
	// Names are additional host names and addresses in the server's certificate.
	Names []string
	// RBAC are ClusterRoles and ClusterRoleBindings that the server creates or updates at every start.
	RBAC []runtime.Object
	// Step is called with the next step of the start, for users; it may be nil.
	Step func(what string)
	// Version is the version of this program. A data directory of another version is
	// backed up before it is changed. An empty version disables this, for tests only.
	Version string
	// Log is the log of the program; nil disables it.
	Log *slog.Logger
	// EncryptionConfig is the path of Kubernetes' EncryptionConfiguration for Secrets; "" means a generated key.
	EncryptionConfig string
	// ForgetUnreadable deletes the Secrets whose key is lost.
	ForgetUnreadable bool
	// Collects says that a garbage collector runs, so deletions may wait for it.
	Collects bool
	// Transform prepares the objects that the server itself caches. It drops unused fields, and may return an equal object
	// instead; nil leaves them as they are.
	Transform cache.TransformFunc
	// FeatureGates turns features of Kubernetes on or off, by name; see gates for those that are always on.
	FeatureGates map[string]bool
	// Metrics are served at /metrics beside those of the API server itself; nil means none.
	Metrics prometheus.Gatherer
	// Paths are additional paths with their handlers, for users with a right to the path.
	Paths map[string]http.Handler
	// Services are handlers that find out themselves who a client is, by how their paths begin.
	Services map[string]http.Handler
	// NoBackups means that no backups are made automatically, which is reported instead of the age of the newest.
	NoBackups bool
	// NoSync omits fsync; for tests only.
	NoSync bool
	// Quota is the size of the database at which etcd refuses writes; 0 means a size that fits the disk.
	Quota int64
	// External is an etcd that others run, which holds the objects; zero means that of the last start, which is one in
	// DataDir unless this was given before.
	External external.Options
}

// etcd returns the options of etcd.
func (o Options) etcd(dir string) etcd.Options {
	e := etcd.Options{
		Dir: filepath.Join(dir, "etcd"), Record: filepath.Join(dir, datadir.Record), NoSync: o.NoSync, Quota: o.Quota,
	}
	if !o.NoSync {
		e.Reserve = filepath.Join(dir, datadir.Reserve)
	}
	return e
}

// listen opens the listener, with a limit of its connections, before any expensive part of the start.
func (o Options) listen(most int) (net.Listener, error) {
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w; set host:port with --listen", o.Listen, err)
	}
	if net.ParseIP(host) == nil && host != "localhost" {
		return nil, fmt.Errorf("address %q: %s is not an IP address; set host:port with --listen", o.Listen, host)
	}
	l, err := net.Listen("tcp", o.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: another process listens at %s; choose another port with --listen, or port 0 for a free "+
			"one (%s is taken)", ErrPortTaken, o.Listen, port)
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", o.Listen, err)
	}
	return netutil.LimitListener(l, most), nil
}

// step reports the next step of the start.
func (o Options) step(what string) {
	if o.Step != nil {
		o.Step(what)
	}
}

// gates are the features that differ from Kubernetes' defaults: the node agent and the controllers write the health of
// volumes and of drivers' storage into the fields of KEP-1432, which the server would otherwise drop.
func gates() map[string]bool {
	return map[string]bool{string(features.CSIVolumeHealth): true}
}

// setGates sets features for the whole process; the requested ones override its own. It must be called before any part
// of the server is created, because some parts read their features at that time. It may be repeated.
func setGates(asked map[string]bool) error {
	all := gates()
	maps.Copy(all, asked)
	unknown := maps.Clone(all)
	for feature := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		delete(unknown, string(feature))
	}
	// The gate would remember an unknown name, and refuse everything after it.
	if names := slices.Sorted(maps.Keys(unknown)); len(names) > 0 {
		return fmt.Errorf("feature gate %.80q: Kubernetes has no such feature", names[0])
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(all); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return nil
}
