package csi

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// Limits of calls. A driver that needs longer finds the same call again.
const (
	// nodeLimit bounds a call of the node service: a kubelet's limit.
	nodeLimit = 2 * time.Minute
	// controllerLimit bounds other calls: that of the attacher's sidecar.
	controllerLimit = 15 * time.Second
	// createLimit bounds CreateVolume, whatever its caller says: it may copy a
	// volume, but a worker must come back.
	createLimit = 5 * time.Minute
)

const methodCreateVolume = "/csi.v1.Controller/CreateVolume"

// withDeadline bounds each call in time. A caller's own deadline stands,
// except that no CreateVolume lasts longer than createLimit.
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
