package etcd

import (
	"context"
	"fmt"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// bump is by how much the revisions of a restored database are above those of
// its snapshot: whoever has seen a later revision than the snapshot's must not
// take a new one for one that it knows (etcd's advice for restores). The past is
// marked as compacted, so that everybody who watches reads all anew.
const bump = 1_000_000_000

// Socket is where the etcd over a directory answers, if it runs.
func Socket(dir string) string { return Options{Dir: dir}.socket() }

// Save writes a snapshot of a running etcd, at its socket, to a file that must
// not exist. It may be repeated.
func Save(ctx context.Context, socket, file string) error {
	c := clientv3.Config{Endpoints: []string{"unix://" + socket}, Logger: zap.NewNop(), Context: ctx}
	if _, err := snapshot.NewV3(zap.NewNop()).Save(ctx, c, file); err != nil {
		return fmt.Errorf("read a snapshot of etcd: %w", err)
	}
	return nil
}

// Verify returns the number of keys and the last revision of a snapshot that is
// whole, or else ErrDamaged.
func Verify(file string) (keys int, revision int64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, file, p)
		}
	}()
	s, err := snapshot.NewV3(zap.NewNop()).Status(file)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %s: %w", ErrDamaged, file, err)
	}
	return s.TotalKey, s.Revision, nil
}

// Restore makes the directory of an etcd, which must not exist, of a snapshot.
func Restore(file, dir string) error {
	c := Options{Dir: dir}.config(zap.NewNop())
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: c.Name, OutputDataDir: c.Dir, OutputWALDir: filepath.Join(c.Dir, "member", "wal"),
		PeerURLs: []string{c.AdvertisePeerUrls[0].String()}, InitialCluster: c.InitialCluster,
		InitialClusterToken: c.InitialClusterToken,
		RevisionBump:        bump, MarkCompacted: true,
	})
	if err != nil {
		return fmt.Errorf("%w: restore %s: %w", ErrDamaged, file, err)
	}
	return nil
}
