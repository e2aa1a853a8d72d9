package csi

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/volume"
)

// OutcomeOf says what is known of the effect of a call that ended with err.
// After Canceled, DeadlineExceeded, Unavailable, Aborted, and an error that is
// no gRPC status, the effect may exist or may still appear (S1, the rule of
// today's sidecars); any other code is the driver's final no.
func OutcomeOf(err error) volume.Outcome {
	if err == nil {
		return volume.Done
	}
	s, ok := status.FromError(err)
	if !ok {
		return volume.Unknown
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.Unknown:
		return volume.Unknown
	default:
		return volume.Failed
	}
}

// OutcomeOfNodeCall is OutcomeOf for attach, stage and publish, where a driver
// that is short of resources may have started nevertheless.
func OutcomeOfNodeCall(err error) volume.Outcome {
	if status.Code(err) == codes.ResourceExhausted {
		return volume.Unknown
	}
	return OutcomeOf(err)
}

// maxMessage bounds what a driver can make us write into events and status.
const maxMessage = 512

// Describe returns a driver's error as one short line for events and status.
func Describe(err error) string {
	if err == nil {
		return ""
	}
	s := status.Convert(err)
	text := strings.Join(strings.Fields(strings.ToValidUTF8(s.Message(), "?")), " ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return s.Code().String() + ": " + text
}
