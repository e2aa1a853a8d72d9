package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// maxAnswer is the size limit of one answer of a driver, in bytes.
const maxAnswer = 4 << 20

// connectionBuffer is the size of the buffers of a connection, in bytes. gRPC's own are eight times as large, and a
// host may have hundreds of drivers, most of which are idle.
const connectionBuffer = 4 << 10

// window is how many bytes of a call's answers wait until they are read. gRPC would let it grow to 16 MiB under load,
// and a driver's stream may be read slowly.
const window = 64 << 10

// nameLimit is the time limit for reading the driver's name on a new connection.
const nameLimit = 10 * time.Second

// errNoReconnect is the error of a gRPC client that tries to connect a second time.
var errNoReconnect = errors.New("the connection to the driver was lost")

// link connects to a socket. It reconnects after a connection was lost, and before a call uses the
// new connection, it checks that the driver still has its registered name: another program may
// listen at the socket by then. For this each connection has its own gRPC client, which never
// reconnects.
type link struct {
	socket string
	// dial makes a connection to the socket.
	dial func(context.Context) (net.Conn, error)
	// name is the registered name; empty while Dial reads it.
	name string
	// connecting is held by the goroutine that connects. It is a channel so that waiting for it can
	// end with the context.
	connecting chan struct{}

	mu     sync.Mutex
	conn   *connection
	closed bool
	// calls is the number of calls that have begun and not ended, including those that wait for a
	// lock.
	calls int
	// retired says that the connection is closed when calls becomes 0.
	retired bool

	// connections is the number of connections that were made so far.
	connections atomic.Int64
}

// connection is one connection. A lost one is closed by its last user: a driver that shuts down
// gracefully still answers the calls in flight.
type connection struct {
	*grpc.ClientConn
	// users is the number of calls that use the connection.
	users atomic.Int64
	lost  atomic.Bool
}

func (c *connection) release() {
	if c.users.Add(-1) == 0 && c.lost.Load() {
		_ = c.Close()
	}
}

func newLink(socket string, dial func(context.Context) (net.Conn, error)) *link {
	return &link{socket: socket, dial: dial, connecting: make(chan struct{}, 1)}
}

func dialUnix(socket string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) }
}

// invoke makes one call over a connection whose driver has the registered name.
func (l *link) invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	c, err := l.take(ctx)
	if err != nil {
		return err
	}
	defer c.release()
	return callError(c.Invoke(ctx, method, req, reply, opts...))
}

// callError returns a readable error of a call. When the deadline of a call passes, the driver's side may notice that
// first; gRPC's error then names the HTTP/2 frame that ended the stream, and not the deadline.
func callError(err error) error {
	s := status.Convert(err)
	if s.Code() == codes.DeadlineExceeded && strings.HasPrefix(s.Message(), "stream terminated") {
		return status.FromContextError(context.DeadlineExceeded).Err()
	}
	return err
}

func (l *link) take(ctx context.Context) (*connection, error) {
	select {
	case l.connecting <- struct{}{}:
		defer func() { <-l.connecting }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c == nil || c.GetState() != connectivity.Ready {
		l.drop()
		var err error
		if c, err = l.connect(ctx); err != nil {
			l.drop()
			return nil, err
		}
	}
	c.users.Add(1)
	return c, nil
}

// connected says whether there is a connection that has not been lost.
func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil && l.conn.GetState() == connectivity.Ready
}

// awaitLoss waits until the connection is lost.
func (l *link) awaitLoss(ctx context.Context) { l.awaitLossOf(ctx, 0) }

// awaitLossOf waits until connection number known is lost. It returns immediately if another connection has been made
// since. For 0 it waits for any existing connection.
func (l *link) awaitLossOf(ctx context.Context, known int64) {
	c, err := l.take(ctx)
	if err != nil {
		return
	}
	defer c.release()
	if known == 0 || known == l.connections.Load() {
		c.WaitForStateChange(ctx, connectivity.Ready)
	}
}

// drop removes the connection. The caller holds connecting, so no call starts to use it.
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return
	}
	l.conn.lost.Store(true)
	if l.conn.users.Load() == 0 {
		_ = l.conn.Close()
	}
	l.conn = nil
}

func (l *link) connect(ctx context.Context) (*connection, error) {
	cc, err := l.client()
	if err != nil {
		return nil, fmt.Errorf("connect to driver at %s: %w", l.socket, err)
	}
	c := &connection{ClientConn: cc}
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.conn = c
	}
	l.mu.Unlock()
	if closed {
		_ = cc.Close()
		return nil, status.Error(codes.Canceled, "the connection to the driver is closed")
	}
	if err := l.checkName(ctx, cc); err != nil {
		return nil, err
	}
	l.connections.Add(1)
	return c, nil
}

func (l *link) client() (*grpc.ClientConn, error) {
	var used atomic.Bool
	return grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(connectionBuffer), grpc.WithWriteBufferSize(connectionBuffer),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errNoReconnect
			}
			return l.dial(ctx)
		}))
}

func (l *link) checkName(ctx context.Context, cc *grpc.ClientConn) error {
	if l.name == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, nameLimit)
	defer cancel()
	info, err := csipb.NewIdentityClient(cc).GetPluginInfo(ctx, &csipb.GetPluginInfoRequest{})
	if err != nil {
		return notCalled(err)
	}
	if info.GetName() != l.name {
		// The registered driver has not answered, so the outcome of its earlier calls is still
		// unknown: Unavailable is not a final error.
		return refuse(codes.Unavailable, ErrOtherDriver,
			fmt.Sprintf("driver at %s now calls itself %.80q, registered as %q", l.socket, info.GetName(), l.name))
	}
	return nil
}

// notCalled returns the error of a call that was not made because the driver did not return its
// name. Whatever the code of err is, it is not the answer to the call.
func notCalled(err error) error {
	code := status.Code(err)
	if code != codes.DeadlineExceeded && code != codes.Canceled {
		code = codes.Unavailable
	}
	return status.Error(code, "read the driver's name after a reconnect: "+line(status.Convert(err).Message()))
}

// close ends the connection and every call in flight.
func (l *link) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.conn == nil {
		return nil
	}
	c := l.conn
	l.conn = nil
	return c.Close()
}

func (l *link) retire() {
	l.beginCall()
	l.mu.Lock()
	l.retired = true
	l.mu.Unlock()
	l.endCall()
}

func (l *link) beginCall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
}

func (l *link) endCall() {
	l.mu.Lock()
	l.calls--
	last := l.calls == 0 && l.retired
	l.mu.Unlock()
	if last {
		_ = l.close()
	}
}

// service is the connection that the generated CSI clients use; it passes each call through the
// chain.
type service struct {
	link    *link
	call    invoker
	memory  *Memory
	witness func(method string, reply any, err error)
}

// Invoke makes one call.
func (s service) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	s.link.beginCall()
	defer s.link.endCall()
	return s.call(ctx, method, req, reply, opts...)
}

var _ grpc.ClientConnInterface = service{}
