package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// maxAnswer bounds one answer of a driver, in bytes.
const maxAnswer = 4 << 20

// nameLimit bounds the question for the driver's name on a new connection.
const nameLimit = 10 * time.Second

// errUsedUp is why a connection that was lost is not made again.
var errUsedUp = errors.New("connection to the driver is used up")

// link is the way to a socket. It connects again when the connection was lost,
// and lets a call use a connection only after the driver there has told the
// name that it is registered by: another program may listen at the socket now.
// For this each connection is a client of its own that never connects twice.
type link struct {
	socket string
	// name is the registered name; empty until Dial has learned it.
	name string
	// turn is held by the one who connects. It is a channel because waiting
	// for it ends with the context.
	turn chan struct{}

	mu     sync.Mutex
	conn   *connection
	closed bool
	// calls counts those that have begun and not ended, also where they wait
	// for their turn; retired says that the last of them closes.
	calls   int
	retired bool

	// made is how many connections there have been.
	made atomic.Int64
}

// connection is one connection and the number of calls that use it. One that
// is lost is closed by its last user: a driver that shuts down gracefully
// still answers what it was asked.
type connection struct {
	*grpc.ClientConn
	users atomic.Int64
	lost  atomic.Bool
}

func (c *connection) leave() {
	if c.users.Add(-1) == 0 && c.lost.Load() {
		_ = c.Close()
	}
}

func newLink(socket string) *link { return &link{socket: socket, turn: make(chan struct{}, 1)} }

// invoke makes one call, over a connection whose driver has the right name.
func (l *link) invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	c, err := l.take(ctx)
	if err != nil {
		return err
	}
	defer c.leave()
	return c.Invoke(ctx, method, req, reply, opts...)
}

func (l *link) take(ctx context.Context) (*connection, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
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

// lost waits until the connection ends.
func (l *link) lost(ctx context.Context) { l.ended(ctx, 0) }

// ended waits until the connection ends; if there have been so many already, and
// it is another one, it does not wait.
func (l *link) ended(ctx context.Context, known int64) {
	c, err := l.take(ctx)
	if err != nil {
		return
	}
	defer c.leave()
	if known == 0 || known == l.made.Load() {
		c.WaitForStateChange(ctx, connectivity.Ready)
	}
}

// drop forgets the connection; l.turn is held, so nobody begins to use it.
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
	l.made.Add(1)
	return c, nil
}

func (l *link) client() (*grpc.ClientConn, error) {
	var used atomic.Bool
	return grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errUsedUp
			}
			var d net.Dialer
			return d.DialContext(ctx, "unix", l.socket)
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
		// The driver that was meant has not answered, so its earlier calls are
		// as open as before: Unavailable is not final.
		return refuse(codes.Unavailable, ErrOther,
			fmt.Sprintf("driver at %s now calls itself %.80q, registered as %q", l.socket, info.GetName(), l.name))
	}
	return nil
}

// notCalled says that a call was not made because the driver did not tell its
// name. Whatever the code was, it is no answer to the call.
func notCalled(err error) error {
	code := status.Code(err)
	if code != codes.DeadlineExceeded && code != codes.Canceled {
		code = codes.Unavailable
	}
	return status.Error(code, "ask the driver's name again: "+line(status.Convert(err).Message()))
}

// close ends the connection and every call under way.
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
	l.begin()
	l.mu.Lock()
	l.retired = true
	l.mu.Unlock()
	l.end()
}

func (l *link) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
}

func (l *link) end() {
	l.mu.Lock()
	l.calls--
	last := l.calls == 0 && l.retired
	l.mu.Unlock()
	if last {
		_ = l.close()
	}
}

// service lets the clients that are generated from CSI's definition use the
// chain.
type service struct {
	link *link
	call invoker
}

// Invoke makes one call.
func (s service) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	s.link.begin()
	defer s.link.end()
	return s.call(ctx, method, req, reply, opts...)
}

// NewStream refuses: the services used here have no streams.
func (service) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "streams are not supported")
}

var _ grpc.ClientConnInterface = service{}
