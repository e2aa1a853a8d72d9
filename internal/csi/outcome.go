package csi

import (
	"errors"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/volume"
)

// OutcomeOf says what is known of the effect of a call that ended with err.
// After Canceled, DeadlineExceeded, Unavailable, Aborted, an answer that cannot
// be used, and an error that is no gRPC status, the effect may exist or may
// still appear (the rule of today's sidecars); any other code is the driver's
// final no. It is the rule of DeleteVolume and expansion; to CreateVolume not
// every final no proves that nothing was made (internal/decide/provision).
func OutcomeOf(err error) volume.Outcome {
	if err == nil {
		return volume.Done
	}
	if _, ok := status.FromError(err); !ok || errors.Is(err, ErrAnswer) {
		return volume.Unknown
	}
	switch Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
		return volume.Unknown
	default:
		return volume.Failed
	}
}

// AnswerOf returns the end of a call as the facts that decisions judge.
func AnswerOf(err error) volume.Answer {
	a := volume.Answer{Outcome: OutcomeOf(err), Text: Describe(err)}
	if s, ok := status.FromError(err); ok {
		a.Code, a.Number = s.Code().String(), int32(s.Code()) //nolint:gosec // gRPC's codes are small
	}
	return a
}

// Code returns the gRPC code of an error, wrapped or not: OK of nil, and
// Unknown of an error that is no gRPC status.
func Code(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Unknown
}

// maxMessage bounds, in bytes, what a driver can make us write into events and
// status.
const maxMessage = 512

// Describe returns a driver's error as one short line for events and status.
// Errors of a Driver hold no secrets of the request.
func Describe(err error) string {
	if err == nil {
		return ""
	}
	s := status.Convert(err)
	return s.Code().String() + ": " + line(s.Message())
}

// line makes one short line of printable text.
func line(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return text
}
