package bridge

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	decide "volplane.dev/volplane/internal/decide/flex"
	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/volume"
)

// failure returns an error with its gRPC code and without the values of secrets. The codes that CSI
// uses for unknown outcomes are used only for errors whose outcome is unknown.
func failure(err error, secrets *redact.Secrets) error {
	if err == nil {
		return nil
	}
	return status.Error(codeOf(err), decide.Redact(textOf(err), secrets))
}

func textOf(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	for _, known := range []struct {
		is   error
		code codes.Code
	}{
		{decide.ErrOptionKey, codes.InvalidArgument},
		{decide.ErrNUL, codes.InvalidArgument},
		{decide.ErrTooLong, codes.InvalidArgument},
		{mount.ErrHeld, codes.Aborted},
		{mount.ErrUnknownFS, codes.InvalidArgument},
		{mount.ErrNotPlain, codes.InvalidArgument},
		{flex.ErrChanged, codes.Unavailable},
		{host.ErrNoDriver, codes.Unavailable},
		{host.ErrNotReady, codes.Unavailable},
		{decide.ErrTimeLimit, codes.DeadlineExceeded},
		{flex.ErrNotSupported, codes.FailedPrecondition},
		{mount.ErrNotPermitted, codes.FailedPrecondition},
		{mount.ErrExpandLater, codes.FailedPrecondition},
		{mount.ErrNotBlank, codes.FailedPrecondition},
		{mount.ErrNeedsPerson, codes.FailedPrecondition},
		{mount.ErrOccupied, codes.FailedPrecondition},
		{unix.ENOSPC, codes.ResourceExhausted},
		{context.Canceled, codes.Aborted},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
	} {
		if errors.Is(err, known.is) {
			return known.code
		}
	}
	if !isFinal(err) {
		return codes.Aborted
	}
	return codes.Internal
}

// isFinal says whether a failed call has left nothing behind.
func isFinal(err error) bool {
	var call *flex.CallError
	return !errors.As(err, &call) || call.Outcome == volume.Failed
}
