package app

import (
	"context"

	decide "volplane.dev/volplane/internal/decide/orphans"
	"volplane.dev/volplane/internal/driver/local"
	"volplane.dev/volplane/internal/orphans"
)

// PoolRecords returns what the bundled driver keeps of its volumes in a pool of
// this host; nil if that cannot be read here.
func PoolRecords(dir string) orphans.Records {
	i, err := local.Inspect(dir)
	if err != nil {
		return nil
	}
	return records{i}
}

type records struct{ *local.Inspection }

// Contents looks what is on a volume.
func (r records) Contents(ctx context.Context, handle string) decide.Contents {
	fsType, blank, err := r.Inspection.Contents(ctx, handle)
	return decide.Contents{Known: err == nil, Holds: fsType, Blank: blank}
}
