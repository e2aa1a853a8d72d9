package external

import (
	"bytes"
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fence makes writes certain whose answer is lost, because the leading member died for example. Such a write may have
// been carried out, or may be later. So each write of the API server, which is conditional, has one more condition:
// that a key is as it was last seen. When an answer is lost, the key is written, and after that the write is never
// carried out. What the same request reads says whether it was before; if not, it is made again.
type fence struct {
	key []byte

	mu sync.Mutex
	// revision is when the key was written last, as far as this process knows; 0 until the store is used.
	revision int64
	// led ends when another member leads: what was sent to the former leader may never be answered.
	led  context.Context //nolint:containedctx // of all writes while one member leads
	over context.CancelFunc
}

// again is the pause between two attempts to write the key.
const again = 100 * time.Millisecond

// know records when the key was written last.
func (f *fence) know(revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision = max(f.revision, revision)
}

// lead ends the attempts that began while another member led.
func (f *fence) lead() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over != nil {
		f.over()
	}
	f.led, f.over = context.WithCancel(context.Background())
}

func (f *fence) state() (revision int64, led context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.revision, f.led
}

// invoke makes a request.
type invoke func(ctx context.Context, method string, in, out any) error

// unary is the interceptor of requests with one answer.
func (f *fence) unary(
	ctx context.Context, method string, in, out any, c *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	txn, is := in.(*pb.TxnRequest)
	reply, answers := out.(*pb.TxnResponse)
	if revision, _ := f.state(); revision == 0 || !is || !answers || len(txn.GetCompare()) != 1 ||
		len(txn.GetSuccess()) != 1 || keyOf(txn) == nil {
		return call(ctx, method, in, out, c, opts...)
	}
	return f.write(ctx, txn, reply, func(ctx context.Context, method string, in, out any) error {
		return call(ctx, method, in, out, c, opts...)
	})
}

// write makes a conditional write until its answer arrives.
func (f *fence) write(ctx context.Context, txn *pb.TxnRequest, reply *pb.TxnResponse, call invoke) error {
	for {
		revision, led := f.state()
		err := during(ctx, led, func(ctx context.Context) error {
			return call(ctx, pb.KV_Txn_FullMethodName, f.behind(txn, revision), reply)
		})
		switch {
		case err == nil && reply.GetSucceeded():
			return nil
		case err == nil:
			last := len(reply.GetResponses()) - 1
			now := revisionOf(reply.GetResponses()[last])
			reply.Responses = reply.GetResponses()[:last]
			if now <= revision { // less if it was deleted
				return nil
			}
			f.know(now)
		case ctx.Err() != nil || !isLost(err):
			return err
		default:
			if done, err := f.settle(ctx, txn, reply, call); done || err != nil {
				return err
			}
		}
	}
}

// during does something until ctx ends, or until led does.
func during(ctx, led context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(led, cancel)()
	return do(ctx)
}

// isLost says whether a request that has ended with an error may have been carried out.
func isLost(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return true
	}
	return false
}

// behind returns a write with the condition that the fence has a revision. If it fails, the last response shows the
// fence.
func (f *fence) behind(txn *pb.TxnRequest, revision int64) *pb.TxnRequest {
	unmoved := &pb.Compare{
		Key: f.key, Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: revision},
	}
	return &pb.TxnRequest{
		Compare: append([]*pb.Compare{unmoved}, txn.GetCompare()...), Success: txn.GetSuccess(),
		Failure: append(append([]*pb.RequestOp{}, txn.GetFailure()...), reading(f.key)),
	}
}

func reading(key []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}
}

// keyOf returns the key that a write puts or deletes, and nil if it does something else.
func keyOf(txn *pb.TxnRequest) []byte {
	op := txn.GetSuccess()[0]
	if put := op.GetRequestPut(); put != nil {
		return put.GetKey()
	}
	if gone := op.GetRequestDeleteRange(); gone != nil && len(gone.GetRangeEnd()) == 0 {
		return gone.GetKey()
	}
	return nil
}

// revisionOf returns when the key was written last that a response shows, 0 if it does not exist.
func revisionOf(r *pb.ResponseOp) int64 {
	for _, kv := range r.GetResponseRange().GetKvs() {
		return kv.GetModRevision()
	}
	return 0
}

// settle moves the fence, and says whether a write whose answer was lost was carried out before; then reply is its
// answer.
func (f *fence) settle(ctx context.Context, txn *pb.TxnRequest, reply *pb.TxnResponse, call invoke) (bool, error) {
	move := &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: f.key, Value: []byte(started())}}},
		reading(keyOf(txn)),
	}}
	moved := &pb.TxnResponse{}
	for {
		// An attempt that is lost has no effect but that of the next one.
		limited, end := context.WithTimeout(ctx, lookLimit)
		err := call(limited, pb.KV_Txn_FullMethodName, move, moved)
		end()
		if err == nil {
			break
		}
		if !isLost(err) {
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(again):
		}
	}
	f.know(moved.GetHeader().GetRevision())
	found := moved.GetResponses()[1].GetResponseRange().GetKvs()
	if !isDone(txn, found) {
		return false, nil
	}
	reply.Header, reply.Succeeded, reply.Responses = moved.GetHeader(), true, nil
	for _, kv := range found {
		reply.Header.Revision = kv.GetModRevision()
	}
	return true, nil
}

// isDone says whether the key of a write is as the write makes it. A put whose effect another write has already
// replaced is made again, and finds that its condition fails.
func isDone(txn *pb.TxnRequest, found []*mvccpb.KeyValue) bool {
	put := txn.GetSuccess()[0].GetRequestPut()
	if put == nil {
		// An object that was created later is not the one to delete.
		return len(found) == 0 || found[0].GetCreateRevision() > txn.GetCompare()[0].GetModRevision()
	}
	return len(found) == 1 && bytes.Equal(found[0].GetValue(), put.GetValue())
}
