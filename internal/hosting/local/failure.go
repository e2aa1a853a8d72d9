package local

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/mount"
)

// failure returns an error of the pool or the kernel with its gRPC code and, if the error does not
// say it, with the next step.
func failure(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, known := range []struct {
		is   error
		code codes.Code
		next string
	}{
		{errMissing, codes.NotFound, ""},
		{errID, codes.NotFound, ""},
		{errDamaged, codes.Internal, ""},
		{errBusy, codes.Aborted, ""},
		{mount.ErrHeld, codes.Aborted, ""},
		{mount.ErrUnknownFS, codes.InvalidArgument, ""},
		{errNoPreallocation, codes.InvalidArgument, ""},
		{mount.ErrNotPlain, codes.InvalidArgument, ""},
		{mount.ErrNotPermitted, codes.FailedPrecondition, ""},
		{mount.ErrGrowLater, codes.FailedPrecondition, ""},
		{mount.ErrNotBlank, codes.FailedPrecondition, "; it is never formatted: ask for what it holds, or delete the volume"},
		{mount.ErrNeedsPerson, codes.FailedPrecondition, ""},
		{mount.ErrOccupied, codes.FailedPrecondition, "; unmount that first"},
		{mount.ErrNoLoop, codes.ResourceExhausted, ""},
		{unix.ENOSPC, codes.ResourceExhausted, "; the pool's disk is full: delete volumes or snapshots, or make room on it"},
		{
			unix.EDQUOT, codes.ResourceExhausted,
			"; the quota of the pool's disk is used up: delete volumes or snapshots, or raise it",
		},
		{unix.EFBIG, codes.OutOfRange, "; the filesystem of the pool has no files as large: ask for less"},
		{unix.EBUSY, codes.FailedPrecondition, "; a process still uses it, end that first"},
		{context.Canceled, codes.Canceled, ""},
		{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
	} {
		if errors.Is(err, known.is) {
			return status.Error(known.code, err.Error()+known.next)
		}
	}
	return status.Error(codes.Internal, err.Error())
}
