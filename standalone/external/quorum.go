package external

import (
	"context"
	"errors"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/volume"
)

// quorum ends requests for keys when the quorum is lost, and refuses them until it is back.
type quorum struct {
	mu sync.Mutex
	// has ends when the quorum is lost, with the reason as its cause.
	has  context.Context //nolint:containedctx // of all requests while the store has a quorum
	lose context.CancelCauseFunc
}

// set records why there is no quorum; nil means that there is one.
func (q *quorum) set(lost *volume.Because) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if lost != nil {
		q.lose(errors.New(lost.Message))
		return
	}
	q.has, q.lose = context.WithCancelCause(context.Background())
}

func (q *quorum) context() context.Context {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.has
}

// during returns a context for a request that also ends when the quorum is lost, or an error if it is.
func (q *quorum) during(ctx context.Context) (context.Context, context.CancelCauseFunc, error) {
	has := q.context()
	if has.Err() != nil {
		return nil, nil, apierrors.NewServiceUnavailable(context.Cause(has).Error())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(has, func() {
		cancel(apierrors.NewTimeoutError(context.Cause(has).Error(), 0))
	})
	return ctx, func(err error) { stop(); cancel(err) }, nil
}

// because returns the error of a request that has ended with the quorum, which may have had its effect, or the
// request's own.
func because(ctx context.Context, err error) error {
	var lost *apierrors.StatusError
	if err != nil && errors.As(context.Cause(ctx), &lost) {
		return lost
	}
	return err
}

// asking marks the context of the requests that find out whether there is a quorum.
type asking struct{}

// unary is the interceptor of requests with one answer.
func (q *quorum) unary(
	ctx context.Context, method string, in, out any, c *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if ctx.Value(asking{}) != nil ||
		!strings.HasPrefix(method, keyService) && method != pb.Lease_LeaseGrant_FullMethodName {
		return call(ctx, method, in, out, c, opts...)
	}
	ctx, end, err := q.during(ctx)
	if err != nil {
		return err
	}
	defer end(nil)
	return because(ctx, call(ctx, method, in, out, c, opts...))
}

// keyService begins the names of all methods of the service that has the keys.
const keyService = "/etcdserverpb.KV/"

// stream is the interceptor of lists in pieces, and of watches: existing ones wait by their nature, and new ones are
// refused, because a store that is back has to be recognized before it is trusted.
func (q *quorum) stream(
	ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if !strings.HasPrefix(method, keyService) {
		if has := q.context(); method == pb.Watch_Watch_FullMethodName && has.Err() != nil {
			return nil, status.Error(codes.Unavailable, context.Cause(has).Error())
		}
		return open(ctx, d, c, method, opts...)
	}
	ctx, end, err := q.during(ctx)
	if err != nil {
		return nil, err
	}
	s, err := open(ctx, d, c, method, opts...)
	if err != nil {
		err = because(ctx, err)
		end(nil)
		return nil, err
	}
	return &pieces{s, end}, nil
}

// pieces is a paged list, whose context ends with the list.
type pieces struct {
	grpc.ClientStream
	end context.CancelCauseFunc
}

// RecvMsg receives the next piece.
func (p *pieces) RecvMsg(m any) error {
	err := p.ClientStream.RecvMsg(m)
	if err != nil {
		err = because(p.Context(), err)
		p.end(nil)
	}
	return err
}
