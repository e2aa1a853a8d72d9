package app

import (
	"context"

	decide "volplane.dev/volplane/internal/decide/orphans"
	"volplane.dev/volplane/internal/gather/orphans"
	"volplane.dev/volplane/internal/hosting/local"
)

// PoolRecords returns the records of the bundled driver in a pool of this host; nil if
// they cannot be read.
func PoolRecords(dir string) orphans.Records {
	i, err := local.Inspect(dir)
	if err != nil {
		return nil
	}
	return records{i}
}

type records struct{ *local.Inspection }

// Contents inspects the content of a volume.
func (r records) Contents(ctx context.Context, handle string) decide.Contents {
	fsType, blank, err := r.Inspection.Contents(ctx, handle)
	return decide.Contents{Known: err == nil, Holds: fsType, Blank: blank}
}
