package snapshotmetadata

import (
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// slots limits how many of something are open at the same time, in all and for one client. It is safe for concurrent
// use.
type slots struct {
	most, mostPerClient int

	mu   sync.Mutex
	all  int
	each map[string]int
}

func newSlots(most, mostPerClient int) *slots {
	return &slots{most: most, mostPerClient: mostPerClient, each: map[string]int{}}
}

// take takes a slot for a client at an address, host:port, and returns what gives it back; nil if none is free.
func (s *slots) take(address string) (giveBack func()) {
	client, _, err := net.SplitHostPort(address)
	if err != nil {
		client = address
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == s.most || s.each[client] == s.mostPerClient {
		return nil
	}
	s.all++
	s.each[client]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.each[client]--; s.each[client] == 0 {
			delete(s.each, client)
		}
	})
}

// limitedListener closes the connections for which there is no slot.
type limitedListener struct {
	net.Listener
	slots *slots
}

// Accept returns the next connection that has a slot.
func (l limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if giveBack := l.slots.take(c.RemoteAddr().String()); giveBack != nil {
			return limitedConn{c, giveBack}, nil
		}
		_ = c.Close()
	}
}

type limitedConn struct {
	net.Conn
	giveBack func()
}

// Close closes the connection and gives its slot back.
func (c limitedConn) Close() error {
	defer c.giveBack()
	return c.Conn.Close()
}

// punctual ends a call whose request does not arrive in time. Without it a client that sends nothing has its stream for
// as long as its connection.
func punctual(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	arrived, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- handle(service, &awaited{stream, sync.OnceFunc(func() { close(arrived) })})
	}()
	late := time.NewTimer(requestLimit)
	defer late.Stop()
	select {
	case err := <-ended:
		return err
	case <-arrived:
		return <-ended
	case <-late.C:
		return status.Error(codes.DeadlineExceeded, "the request has not arrived within "+requestLimit.String())
	}
}

// awaited is a stream whose request is awaited.
type awaited struct {
	grpc.ServerStream
	arrived func()
}

// RecvMsg receives the request.
func (a *awaited) RecvMsg(m any) error {
	defer a.arrived()
	return a.ServerStream.RecvMsg(m)
}
