package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// direct is a transport from the server's own process to the server, with one user's
// identity. It uses the same handlers, authorization and flow control, but neither a
// connection nor TLS, which cost as much as a small request itself.
type direct struct {
	server *Server
	user   user.Info
}

var errEnded = errors.New("the API server has stopped")

// RoundTrip passes the request to the handlers. It returns when the response is complete
// or is flushed, as a watch does; then the body is streamed.
func (d *direct) RoundTrip(req *http.Request) (*http.Response, error) {
	body := req.Body
	if body == nil {
		body = http.NoBody
	}
	select {
	case <-d.server.done:
		_ = body.Close()
		return nil, errEnded
	default:
	}
	// The handler's context ends with the client's, but inherits no values.
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), ownUser{}, d.user))
	stop := context.AfterFunc(req.Context(), cancel)
	in := req.Clone(ctx)
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	in.RequestURI, in.RemoteAddr, in.Host, in.Body = req.URL.RequestURI(), "127.0.0.1:0", req.URL.Host, body
	a := &answer{ctx: ctx, cancel: cancel, header: http.Header{}, status: http.StatusOK, started: make(chan struct{})}
	go func() {
		defer stop()
		defer cancel()
		defer body.Close()
		a.end(cmp.Or(handle(d.server.handler, a, in), context.Cause(ctx)))
	}()
	select {
	case <-a.started:
		return a.response(req)
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
}

// handle runs the handler and turns a panic, with which handlers abort a response, into an error.
func handle(h http.Handler, w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("response aborted: %v", p)
		}
	}()
	h.ServeHTTP(w, r)
	return nil
}

// answer is the response of a handler. It is buffered until the handler returns or
// flushes; after a flush each write blocks until it is read.
type answer struct {
	ctx    context.Context //nolint:containedctx // of the one request that this answers
	cancel context.CancelFunc
	header http.Header

	// started is closed when the fields below are final.
	started chan struct{}
	status  int
	sent    http.Header
	kept    bytes.Buffer
	stream  *io.PipeWriter
	body    io.Reader
	err     error
}

// Header returns the header to be sent.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader fixes the status and the header; only the first call counts.
func (a *answer) WriteHeader(status int) {
	if a.sent == nil {
		a.status, a.sent = status, a.header.Clone()
	}
}

// Write adds to the body.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.stream != nil {
		return a.stream.Write(p)
	}
	return a.kept.Write(p)
}

// Flush makes the written data visible to the client, and starts streaming.
func (a *answer) Flush() {
	if a.stream != nil {
		return
	}
	a.WriteHeader(http.StatusOK)
	rest, stream := io.Pipe()
	a.stream, a.body = stream, io.MultiReader(&a.kept, rest)
	// A handler may be blocked in Write when the client stops reading.
	context.AfterFunc(a.ctx, func() { _ = stream.CloseWithError(context.Cause(a.ctx)) })
	close(a.started)
}

// CloseNotify is part of the interface that handlers require for streaming; the request's context shows them that the
// client is gone.
func (a *answer) CloseNotify() <-chan bool { return nil }

func (a *answer) end(err error) {
	a.WriteHeader(http.StatusOK)
	if a.stream != nil {
		_ = a.stream.CloseWithError(err)
		return
	}
	a.body, a.err = &a.kept, err
	close(a.started)
}

func (a *answer) response(req *http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	length := int64(-1)
	if a.stream == nil {
		length = int64(a.kept.Len())
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)), StatusCode: a.status,
		Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: a.sent, Body: answerBody{a.body, a}, ContentLength: length, Request: req,
	}, nil
}

// answerBody is the response body for the client. It ends with the handler.
type answerBody struct {
	io.Reader
	answer *answer
}

// Close notifies the handler that the client has stopped reading.
func (b answerBody) Close() error {
	b.answer.cancel()
	return nil
}

type ownUser struct{}

// ownProcess authenticates the requests of direct by their context, which cannot be set from outside the process.
func ownProcess() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		u, ok := r.Context().Value(ownUser{}).(user.Info)
		return &authenticator.Response{User: u}, ok, nil
	})
}

// own says whether a request comes from this process.
func own(ctx context.Context) bool {
	_, ok := ctx.Value(ownUser{}).(user.Info)
	return ok
}
