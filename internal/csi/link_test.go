package csi

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestCallError: whichever side notices first that the deadline of a call has passed, the error is the same.
func TestCallError(t *testing.T) {
	for _, row := range []struct{ err, want error }{
		{nil, nil},
		{
			status.Error(codes.DeadlineExceeded, "stream terminated by RST_STREAM with error code: CANCEL"),
			status.Error(codes.DeadlineExceeded, "context deadline exceeded"),
		},
		{
			status.Error(codes.DeadlineExceeded, "the array is slow"), status.Error(codes.DeadlineExceeded, "the array is slow"),
		},
		{
			status.Error(codes.Internal, "stream terminated by RST_STREAM"),
			status.Error(codes.Internal, "stream terminated by RST_STREAM"),
		},
	} {
		if got := callError(row.err); Describe(got) != Describe(row.want) {
			t.Errorf("%v: %v, want %v", row.err, got, row.want)
		}
	}
}
