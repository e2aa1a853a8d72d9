package etcd

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// failing ends the goroutine that reads, as etcd does when it finds damage.
type failing struct{ pb.KVClient }

func (failing) Range(context.Context, *pb.RangeRequest, ...grpc.CallOption) (*pb.RangeResponse, error) {
	runtime.Goexit()
	return nil, nil
}

// TestFatalErrorIsNoAnswer reads while etcd fails: the caller's goroutine neither continues nor ends before its context
// does.
func TestFatalErrorIsNoAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, err := calls{failing{}}.Range(ctx, &pb.RangeRequest{})
			t.Error("a read has returned:", err)
		}()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the goroutine has ended")
		default:
		}
		cancel()
		<-ended
	})
}
