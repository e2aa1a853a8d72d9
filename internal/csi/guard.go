package csi

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

// callLimit bounds a call whose caller set no deadline. A driver that needs
// longer finds the same call again.
const callLimit = 2 * time.Minute

func deadline(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callLimit)
		defer cancel()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// hideSecrets takes the request's secrets out of the driver's error: drivers
// quote what they were given.
func hideSecrets(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err == nil {
		return nil
	}
	r, ok := req.(interface{ GetSecrets() map[string]string })
	if !ok || len(r.GetSecrets()) == 0 {
		return err
	}
	s := status.Convert(err)
	text := s.Message()
	for _, secret := range r.GetSecrets() {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return status.Error(s.Code(), text)
}

// guard holds what the calls of one driver share.
type guard struct {
	driver *Driver
	calls  *calls

	mu sync.Mutex
	// doubted says that the connection was lost since the name was checked.
	doubted bool
}

// identity asks for the driver's name again after the connection was lost,
// because another program may listen at the socket now.
func (g *guard) identity(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if g.driver.Name != "" && !strings.HasPrefix(method, "/csi.v1.Identity/") {
		if err := g.check(ctx, cc); err != nil {
			return err
		}
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if status.Code(err) == codes.Unavailable {
		g.setDoubted(true)
	}
	return err
}

func (g *guard) check(ctx context.Context, cc *grpc.ClientConn) error {
	g.mu.Lock()
	doubted := g.doubted || cc.GetState() != connectivity.Ready
	g.mu.Unlock()
	if !doubted {
		return nil
	}
	info, err := g.driver.IdentityClient().GetPluginInfo(ctx, &csipb.GetPluginInfoRequest{})
	if err != nil {
		return err
	}
	if info.GetName() != g.driver.Name {
		return status.Error(codes.FailedPrecondition, fmt.Sprintf("%v: the driver at %s now calls itself %.80q, registered as %q", ErrOther, g.driver.Endpoint, info.GetName(), g.driver.Name))
	}
	g.setDoubted(false)
	return nil
}

func (g *guard) setDoubted(d bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.doubted = d
}

// serialise lets one call at a time through for each volume, as CSI asks of
// its callers.
func (g *guard) serialise(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	key := volumeOf(req)
	if key == "" {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if err := g.calls.enter(ctx, key); err != nil {
		// The call was never made: its failure is final.
		return status.Error(codes.FailedPrecondition, "an earlier call for the volume has not ended yet")
	}
	defer g.calls.leave(key)
	return invoke(ctx, method, req, reply, cc, opts...)
}

func volumeOf(req any) string {
	switch r := req.(type) {
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	case *csipb.CreateVolumeRequest:
		return "name " + r.GetName()
	}
	return ""
}

// calls is a set of mutexes, one for each volume that has a call under way.
type calls struct {
	mu   sync.Mutex
	busy map[string]chan struct{}
}

func newCalls() *calls { return &calls{busy: map[string]chan struct{}{}} }

func (c *calls) enter(ctx context.Context, key string) error {
	for {
		c.mu.Lock()
		wait, taken := c.busy[key]
		if !taken {
			c.busy[key] = make(chan struct{})
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *calls) leave(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.busy[key])
	delete(c.busy, key)
}
