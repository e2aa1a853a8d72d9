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

// works are the calls that are under way. The zero works is ready.
type works struct {
	mu  sync.Mutex
	all map[string][]*work
	// running are those that have not ended.
	running sync.WaitGroup
}

// work is one call. It goes on when its caller has gone.
type work struct {
	// path is what the work is about; a wide one is about the whole volume.
	path    string
	wide    bool
	request proto.Message
	ended   chan struct{}
	answer  proto.Message
	err     error
}

// do runs a work, or waits for the same one that runs already. Another one about
// the same path, or about the whole volume, is refused with Aborted. When ctx
// ends the caller hears so, and the work goes on.
func (w *works) do(
	ctx context.Context, key string, one *work, run func(context.Context) (proto.Message, error),
) (proto.Message, error) {
	running, other := w.begin(ctx, key, one, run)
	if other {
		return nil, status.Errorf(codes.Aborted, "another call about this volume is under way; call again")
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

func (w *works) begin(
	ctx context.Context, key string, one *work, run func(context.Context) (proto.Message, error),
) (running *work, other bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.all[key] {
		switch {
		case r.path == one.path && r.wide == one.wide && proto.Equal(r.request, one.request):
			return r, false
		case r.path == one.path || r.wide || one.wide:
			return nil, true
		}
	}
	if w.all == nil {
		w.all = map[string][]*work{}
	}
	one.ended = make(chan struct{})
	w.all[key] = append(w.all[key], one)
	ctx = context.WithoutCancel(ctx)
	w.running.Go(func() {
		one.answer, one.err = run(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.all[key] = slices.DeleteFunc(w.all[key], func(r *work) bool { return r == one }); len(w.all[key]) == 0 {
			delete(w.all, key)
		}
		close(one.ended)
	})
	return one, false
}
