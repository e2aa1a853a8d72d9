package csi

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// NewStream makes one call with a stream of answers. It is not traced, and does not wait for other calls: only the
// snapshot metadata service has streams, and it only reads.
func (s service) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s.link.beginCall()
	c, err := s.link.take(ctx)
	if err != nil {
		s.link.endCall()
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		c.release()
		s.link.endCall()
	})
	inner, err := c.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, hideInError(callError(err), s.memory.secrets.Hide)
	}
	return &stream{inner, s, method}, nil
}

// stream has the answers to one call, without secrets.
type stream struct {
	grpc.ClientStream
	service
	method string
}

// SendMsg sends the request.
func (s *stream) SendMsg(request any) error {
	s.memory.secrets.Add(secretsOf(request)...)
	return s.ClientStream.SendMsg(request)
}

// RecvMsg reads the next answer, or the error at the end, which is io.EOF after success.
func (s *stream) RecvMsg(answer any) error {
	err := callError(s.ClientStream.RecvMsg(answer))
	if s.witness != nil && !errors.Is(err, io.EOF) {
		s.witness(s.method, answer, err)
	}
	if err != nil {
		return hideInError(checkError(err), s.memory.secrets.Hide)
	}
	if m, ok := answer.(proto.Message); ok {
		if problem := messageProblem(m.ProtoReflect()); problem != "" {
			return refuse(codes.Unknown, ErrAnswer, problem)
		}
	}
	return nil
}
