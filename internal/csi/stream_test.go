package csi_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
)

// blockDriver is a driver that has a snapshot metadata service only.
type blockDriver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedSnapshotMetadataServer
}

// GetPluginInfo returns the driver's name.
func (blockDriver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: "d.example"}, nil
}

// GetMetadataAllocated answers twice, and then as the snapshot's id determines.
func (blockDriver) GetMetadataAllocated(
	r *csipb.GetMetadataAllocatedRequest, answers csipb.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	for i := range int64(2) {
		if err := answers.Send(&csipb.GetMetadataAllocatedResponse{
			BlockMetadata: []*csipb.BlockMetadata{{ByteOffset: i << 20, SizeBytes: 1 << 20}},
		}); err != nil {
			return err
		}
	}
	switch r.GetSnapshotId() {
	case "quotes":
		return status.Error(codes.Internal, "cannot log in with "+r.GetSecrets()["key"])
	case "negative":
		return answers.Send(&csipb.GetMetadataAllocatedResponse{
			BlockMetadata: []*csipb.BlockMetadata{{ByteOffset: -1, SizeBytes: 1}},
		})
	case "hangs":
		<-answers.Context().Done()
	}
	return nil
}

// serveBlocks serves a blockDriver, and returns its socket.
func serveBlocks(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csipb.RegisterIdentityServer(server, blockDriver{})
	csipb.RegisterSnapshotMetadataServer(server, blockDriver{})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// TestStreams: the answers of a stream come one by one, its error shows no secret that was sent, and an answer that
// breaks the specification is refused. A stream that does not end ends with its context.
func TestStreams(t *testing.T) {
	seen := 0
	d, err := csi.Dial(t.Context(), serveBlocks(t), csi.WithNameOnly(),
		csi.WithWitness(func(method string, _ any, _ error) {
			if method == csipb.SnapshotMetadata_GetMetadataAllocated_FullMethodName {
				seen++
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, c := range []struct {
		id, want string
		seen     int
	}{
		{"ends", "EOF", 2},
		{"quotes", "Internal: cannot log in with ***", 3},
		{"negative", "negative BlockMetadata.byte_offset", 3},
		{"hangs", "Canceled", 3},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		seen = 0
		answers, err := d.SnapshotMetadataClient().GetMetadataAllocated(ctx,
			&csipb.GetMetadataAllocatedRequest{SnapshotId: c.id, Secrets: map[string]string{"key": "correct-horse-battery"}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(2) {
			if r, err := answers.Recv(); err != nil || r.GetBlockMetadata()[0].GetByteOffset() != i<<20 {
				t.Fatalf("%s: answer %d is %v, %v", c.id, i, r, err)
			}
		}
		if c.id == "hangs" {
			cancel()
		}
		_, err = answers.Recv()
		got := csi.Describe(err)
		if errors.Is(err, io.EOF) {
			got = "EOF"
		}
		if !strings.Contains(got, c.want) || seen != c.seen {
			t.Errorf("%s ends with %q after %d, want %q after %d", c.id, got, seen, c.want, c.seen)
		}
		cancel()
	}
}
