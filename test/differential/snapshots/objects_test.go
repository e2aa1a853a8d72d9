package snapshots

import (
	"context"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"volplane.dev/volplane/test/internal/differential"
)

// takeByHand creates a snapshot at the driver that no object represents yet.
func takeByHand(ctx context.Context, s side, space, name string) error {
	if err := s.CreateAtDriver(ctx, space+"-source"); err != nil {
		return err
	}
	_, err := s.Storage.Driver.CreateSnapshot(ctx,
		&csipb.CreateSnapshotRequest{Name: space + "-" + name, SourceVolumeId: "id-" + space + "-source"})
	return err
}

// contentOf returns the name of a content: "k0" is one that a user has created, and "s0" that of snapshot s0.
func contentOf(s side, space, name string) string {
	if !strings.HasPrefix(name, "s") {
		return space + "-" + name
	}
	for uid, c := range s.Memory.Claims {
		if c == (differential.ClaimName{Space: space, Name: name}) {
			return "snapcontent-" + string(uid)
		}
	}
	return space + "-" + name
}
