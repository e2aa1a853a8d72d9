package backup

import (
	"context"
	"os"

	"volplane.dev/volplane/standalone/etcd"
	"volplane.dev/volplane/standalone/external"
)

// Describe says where the objects of a data directory are, and how that store is.
func Describe(ctx context.Context, dataDir string) (external.Description, error) {
	at, err := external.Recorded(dataDir)
	if err != nil {
		return external.Description{}, err
	}
	if at.IsZero() {
		home := Options{DataDir: dataDir}.etcd()
		d := external.Description{Store: "the etcd in " + home}
		if info, err := os.Stat(etcd.Database(home)); err == nil {
			d.Size = info.Size()
		}
		return d, nil
	}
	s, err := open(ctx, at)
	if err != nil {
		return external.Description{}, err
	}
	defer s.Stop()
	return s.Describe(ctx), nil
}
