package csi

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/redact"
	"volplane.dev/volplane/internal/volume"
)

// OutcomeOf says whether a call that ended with err took effect. After Canceled, DeadlineExceeded,
// Unavailable, Aborted, an answer that cannot be used, a code that gRPC does not define, and an error
// that is not a gRPC status, that is Unknown; any other code is a final error of the driver.
// Upstream's sidecars have the same rule for DeleteVolume and expansion. After CreateVolume not every
// final error proves that no volume exists: see internal/decide/provision.
func OutcomeOf(err error) volume.Outcome {
	if err == nil {
		return volume.Done
	}
	if _, ok := status.FromError(err); !ok || errors.Is(err, ErrAnswer) {
		return volume.Unknown
	}
	switch code := Code(err); {
	case code > codes.Unauthenticated:
		return volume.Unknown
	case code == codes.Canceled, code == codes.DeadlineExceeded, code == codes.Unavailable, code == codes.Aborted:
		return volume.Unknown
	}
	return volume.Failed
}

// AnswerOf returns the end of a call as the facts that decisions judge.
func AnswerOf(err error) volume.Answer {
	a := volume.Answer{Outcome: OutcomeOf(err), Text: Describe(err)}
	if s, ok := status.FromError(err); ok {
		a.Code, a.Number = s.Code().String(), int32(s.Code()) //nolint:gosec // gRPC's codes are small
		a.Gone = s.Code() == codes.Unavailable && volume.DriverGone(a.Text)
	} else {
		a.NoSecret = errors.Is(err, volume.ErrNoSecret)
	}
	return a
}

// Code returns the gRPC code of an error, wrapped or not: OK for nil, and Unknown for an error that
// is not a gRPC status.
func Code(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Unknown
}

// maxMessage is the length limit, in bytes, of a driver's text in events and status.
const maxMessage = 512

// Describe returns a driver's error as one short line for events and status. The errors of a Driver
// hold no secrets.
func Describe(err error) string {
	if err == nil {
		return ""
	}
	s := status.Convert(err)
	return s.Code().String() + ": " + line(s.Message())
}

// line makes one short line of printable text.
func line(text string) string { return redact.Line(text, maxMessage) }
