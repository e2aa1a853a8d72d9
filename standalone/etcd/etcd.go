package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"volplane.dev/volplane/standalone/progress"
)

const (
	// tick is the interval of etcd's clock, which wakes an idle process twice each time. The start waits for the
	// election, which a single member wins with the first tick.
	tick = 100 * time.Millisecond
	// commitInterval is the longest time until the database's file has a write. Until then it is in the log, which is
	// synced before a write is answered.
	commitInterval = 500 * time.Millisecond
	// stallLimit is how long a start may make no progress.
	stallLimit = 2 * time.Minute
	// closeLimit limits the stop; confirmed data are on disk before it.
	closeLimit = 15 * time.Second
	// brokenLimit is the time limit for stopping a member that never became ready, because that hangs, or a member that
	// has failed.
	brokenLimit = time.Second
	// socketNameLimit is the kernel's limit for the name of a unix socket.
	socketNameLimit = 107
	name            = "volplane"
)

// ErrTooLong is the error of a directory whose path is too long for the socket's name. A
// retry with the same path is useless.
var ErrTooLong = errors.New("path too long")

// Options configure etcd.
type Options struct {
	Dir string
	// NoSync omits fsync; for tests only.
	NoSync bool
	// Reserve is the path of the file that holds room in reserve; empty means none. It is on the disk of Dir.
	Reserve string
	// Record is the path of the file in which the member records its position at the start, at the stop, and from time to
	// time; empty means none.
	Record string
	// Quota is the size of the database at which etcd refuses writes; 0 means a size that fits the disk.
	Quota int64
}

// Server is a running member.
type Server struct {
	etcd   *embed.Etcd
	ending *ending
	keeper *keeper
}

// Start starts etcd with a directory and returns when it serves. It waits as long as the
// start makes progress, or until ctx ends.
func Start(ctx context.Context, o Options) (*Server, error) {
	if n := len(o.socket()); n > socketNameLimit {
		return nil, fmt.Errorf("%w: the name of the socket %s has %d bytes, %d are possible; use a shorter --data-dir",
			ErrTooLong, o.socket(), n, socketNameLimit)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	if err := os.Remove(o.socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	o.tidy()
	s := &Server{ending: &ending{why: make(chan error, 1)}}
	opened := make(chan *embed.Etcd, 1)
	go s.ending.open(o.config(s.ending.logger()), opened)
	err := progress.Wait(ctx, stallLimit, func() string { return "etcd reads what it has kept" }, func() (bool, error) {
		select {
		case s.etcd = <-opened:
			return true, nil
		case err := <-s.ending.why:
			return false, err
		default:
			return false, nil
		}
	})
	if err == nil {
		err = s.ready(ctx)
	}
	if err == nil {
		err = s.keep(ctx, o)
	}
	switch {
	case err == nil:
		go s.listen()
		return s, nil
	case s.etcd != nil:
		s.stop(brokenLimit)
	case !s.ending.told.Load():
		// A member that is still being opened is closed afterwards, if the process lives that long.
		go func() { (<-opened).Close() }()
	}
	return nil, fmt.Errorf("start etcd in %s: %w", o.Dir, err)
}

// keep starts the keeper. A database over its quota gets room before any client writes, and the position is recorded.
func (s *Server) keep(ctx context.Context, o Options) error {
	k := &keeper{etcd: s.etcd, reserve: o.Reserve, record: o.Record, done: make(chan struct{})}
	_ = k.keep(ctx) // a failure is repeated, and does not delay reads
	if err := k.begin(ctx); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k.cancel = cancel
	s.keeper = k
	go k.run(run)
	return nil
}

// open starts a member. What ends it during the start is reported as an error, not as a stack: a fatal error ends this
// goroutine only, and so does a panic.
func (e *ending) open(c *embed.Config, opened chan<- *embed.Etcd) {
	debug.SetPanicOnFault(true)
	defer func() {
		if p := recover(); p != nil {
			e.tell(fmt.Errorf("%w: %v", ErrDamaged, p))
		}
	}()
	server, err := embed.StartEtcd(c)
	if err != nil {
		e.tell(err)
		return
	}
	opened <- server
}

// ready waits until the member serves.
func (s *Server) ready(ctx context.Context) error {
	return progress.Wait(ctx, stallLimit, func() string {
		e := s.etcd.Server
		return fmt.Sprintf("etcd has applied %d of %d entries in term %d", e.AppliedIndex(), e.CommittedIndex(), e.Term())
	}, func() (bool, error) {
		select {
		case <-s.etcd.Server.ReadyNotify():
			return true, nil
		case err := <-s.ending.why:
			return false, err
		case err := <-s.etcd.Err():
			return false, err
		default:
			return false, nil
		}
	})
}

func (o Options) socket() string { return filepath.Join(o.Dir, "client.sock") }

func (o Options) config(log *zap.Logger) *embed.Config {
	client := url.URL{Scheme: "unix", Path: o.socket()}
	// A peer address is required although there is no peer and no listener.
	peer := url.URL{Scheme: "http", Host: "localhost:2380"}
	c := embed.NewConfig()
	c.Name, c.Dir = name, memberDir(o.Dir)
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{peer}
	c.InitialCluster = name + "=" + peer.String()
	// The id of a new store is derived from its token, and would otherwise be the same for all.
	c.InitialClusterToken = rand.Text()
	c.EnableGRPCGateway = false
	c.TickMs, c.ElectionMs = uint(tick.Milliseconds()), uint(5*tick.Milliseconds())
	c.BackendBatchInterval = commitInterval
	c.AutoCompactionMode, c.AutoCompactionRetention = "periodic", "5m"
	c.QuotaBackendBytes = o.quota()
	// etcd keeps 5,000 log entries in memory for members that lag behind. There are no other members.
	c.SnapshotCatchUpEntries = 1
	// etcd logs an ordinary stop and a first start as errors; Err returns the errors that stop it.
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	c.UnsafeNoFsync = o.NoSync
	return c
}

// Endpoint returns the address for clients in this process.
func (s *Server) Endpoint() string {
	return "unix://" + s.etcd.Config().ListenClientUrls[0].Path
}

// Err returns a channel that receives a failure of the running member, such as a full
// disk. Only one goroutine may read it.
func (s *Server) Err() <-chan error { return s.ending.why }

// listen reports what ends etcd's listener, until etcd is closed.
func (s *Server) listen() {
	for err := range s.etcd.Err() {
		s.ending.tell(err)
	}
}

// Stop stops the member after everything that it confirmed is on disk. A member that hangs ends with the process.
func (s *Server) Stop() {
	limit := closeLimit
	if s.ending.told.Load() {
		limit = brokenLimit
	}
	s.stop(limit)
}

func (s *Server) stop(limit time.Duration) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if s.keeper != nil {
			s.keeper.stop()
			if !s.ending.told.Load() {
				_ = s.keeper.note() // the record of the last minute is true, too
			}
		}
		s.etcd.Close()
	}()
	select {
	case <-closed:
	case <-time.After(limit):
	}
}

// Client returns a client of the member that uses no connection.
func (s *Server) Client() *clientv3.Client {
	c := v3client.New(s.etcd.Server)
	c.KV = clientv3.NewKVFromKVClient(calls{adapter.KvServerToKvClient(v3rpc.NewQuotaKVServer(s.etcd.Server))}, c)
	return c
}

// Defragment rewrites the database without deleted data.
func (s *Server) Defragment() error { return s.etcd.Server.Backend().Defrag() }

// calls run in the goroutine of the caller, which a fatal error of etcd would end. The API server would mistake that
// for success, so the call waits until ctx ends, as for an answer over a connection.
type calls struct{ pb.KVClient }

// Range reads.
func (c calls) Range(ctx context.Context, in *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return call(ctx, c.KVClient.Range, in)
}

// Txn writes, or reads and writes.
func (c calls) Txn(ctx context.Context, in *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return call(ctx, c.KVClient.Txn, in)
}

func call[I, O any](
	ctx context.Context, f func(context.Context, I, ...grpc.CallOption) (O, error), in I,
) (out O, err error) {
	returned := false
	defer func() {
		if !returned {
			<-ctx.Done()
		}
	}()
	out, err = f(ctx, in)
	returned = true
	return out, err
}
