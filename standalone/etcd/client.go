package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
)

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
