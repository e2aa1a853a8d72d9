package csi

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestInTime: whoever notices first that the time of a call is over, its error is the same.
func TestInTime(t *testing.T) {
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
		if got := inTime(row.err); Describe(got) != Describe(row.want) {
			t.Errorf("%v: %v, want %v", row.err, got, row.want)
		}
	}
}
