package csi

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// These are the time limits of calls. After a limit the same call is repeated, which lets a slow driver continue its
// work.
const (
	// nodeLimit is for calls of the node service; it is a kubelet's limit.
	nodeLimit = 2 * time.Minute
	// controllerLimit is for other calls; it is the default of the external-attacher.
	controllerLimit = 15 * time.Second
	// createLimit is for CreateVolume, also if the caller allows more: the driver may have to copy
	// a volume, but the worker must become free again.
	createLimit = 5 * time.Minute
)

const methodCreateVolume = "/csi.v1.Controller/CreateVolume"

type (
	limitKey    struct{}
	ownLimitKey struct{}
)

// Limit limits the time of each single call that is made with the returned context, whatever its method is. It is the
// user's limit for the calls of a controller.
func Limit(ctx context.Context, limit time.Duration) context.Context {
	return context.WithValue(ctx, limitKey{}, limit)
}

// OwnLimit does the same for the caller's own reasons: a user's limit takes precedence.
func OwnLimit(ctx context.Context, limit time.Duration) context.Context {
	return context.WithValue(ctx, ownLimitKey{}, limit)
}

// limitOf returns the limit of a call; 0 if only its context limits it.
func limitOf(ctx context.Context, method string, controller time.Duration) time.Duration {
	for _, key := range []any{limitKey{}, ownLimitKey{}} {
		if limit, ok := ctx.Value(key).(time.Duration); ok {
			return limit
		}
	}
	_, has := ctx.Deadline()
	switch {
	case method == methodCreateVolume:
		return createLimit
	case has:
		return 0
	case strings.HasPrefix(method, "/csi.v1.Node/"):
		return nodeLimit
	}
	return controller
}

// withDeadline limits the time of each call. A caller's own deadline is kept, except that
// CreateVolume never takes longer than createLimit unless a user allows that.
func withDeadline(controller time.Duration) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			limit := limitOf(ctx, method, controller)
			if limit == 0 {
				return next(ctx, method, req, reply, opts...)
			}
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			return next(ctx, method, req, reply, opts...)
		}
	}
}
