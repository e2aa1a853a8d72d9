package bridge

import (
	"context"
	"errors"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// calls holds the calls in flight. The zero value is ready for use.
type calls struct {
	mu sync.Mutex
	// all holds the calls in flight for each key.
	all map[string][]*inFlight
	// running counts them.
	running sync.WaitGroup
}

// inFlight is one call. It continues after its caller has disconnected.
type inFlight struct {
	// path is the path that the call is about, unless it is about the whole volume.
	path        string
	wholeVolume bool
	request     proto.Message
	ended       chan struct{}
	answer      proto.Message
	err         error
}

// do makes a call, or waits for the same call if it is in flight. If another call about the same
// path or the whole volume is in flight, it fails with Aborted. When ctx ends, it returns an error,
// and the call continues.
func (w *calls) do(
	ctx context.Context, key string, call *inFlight, run func(context.Context) (proto.Message, error),
) (proto.Message, error) {
	running, conflict := w.start(ctx, key, call, run)
	if conflict {
		return nil, status.Errorf(codes.Aborted, "another call about this volume is in flight; call again")
	}
	select {
	case <-running.ended:
		return running.answer, running.err
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, status.Error(codes.DeadlineExceeded, "the driver is still at work; call again to wait for it")
	}
	return nil, status.Error(codes.Canceled, "the driver is still at work; call again to wait for it")
}

// inTurn makes a call by do and returns its answer.
func inTurn[T proto.Message](
	ctx context.Context, w *calls, key string, call *inFlight, run func(context.Context) (T, error),
) (T, error) {
	answer, err := w.do(ctx, key, call, func(ctx context.Context) (proto.Message, error) { return run(ctx) })
	if err != nil {
		var none T
		return none, err
	}
	return answer.(T), nil
}

func (w *calls) start(
	ctx context.Context, key string, call *inFlight, run func(context.Context) (proto.Message, error),
) (running *inFlight, conflict bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.all[key] {
		switch {
		case r.path == call.path && r.wholeVolume == call.wholeVolume && proto.Equal(r.request, call.request):
			return r, false
		case r.path == call.path || r.wholeVolume || call.wholeVolume:
			return nil, true
		}
	}
	if w.all == nil {
		w.all = map[string][]*inFlight{}
	}
	call.ended = make(chan struct{})
	w.all[key] = append(w.all[key], call)
	ctx = context.WithoutCancel(ctx)
	w.running.Go(func() {
		call.answer, call.err = run(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.all[key] = slices.DeleteFunc(w.all[key], func(r *inFlight) bool { return r == call }); len(w.all[key]) == 0 {
			delete(w.all, key)
		}
		close(call.ended)
	})
	return call, false
}
