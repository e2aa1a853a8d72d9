package csi

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// Time limits of calls. After a limit the same call is repeated, so a slow driver can go on with
// its work.
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

// withDeadline limits the time of each call. A caller's own deadline is kept, except that
// CreateVolume never takes longer than createLimit.
func withDeadline(controller time.Duration) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			_, has := ctx.Deadline()
			var limit time.Duration
			switch {
			case method == methodCreateVolume:
				limit = createLimit
			case has:
				return next(ctx, method, req, reply, opts...)
			case strings.HasPrefix(method, "/csi.v1.Node/"):
				limit = nodeLimit
			default:
				limit = controller
			}
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			return next(ctx, method, req, reply, opts...)
		}
	}
}
