package etcd

import (
	"context"
	"fmt"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// bump is added to the revisions of a restored database, as etcd recommends: a client that has seen a later revision
// than the snapshot's must not mistake a new revision for it. Old revisions are marked as compacted, so all watchers
// list again.
const bump = 1_000_000_000

// Socket returns the path of the socket of the etcd with a directory.
func Socket(dir string) string { return Options{Dir: dir}.socket() }

// Save writes a snapshot of a running etcd to a file that must not exist.
func Save(ctx context.Context, socket, file string) error {
	c := clientv3.Config{Endpoints: []string{"unix://" + socket}, Logger: zap.NewNop(), Context: ctx}
	if _, err := snapshot.NewV3(zap.NewNop()).Save(ctx, c, file); err != nil {
		return fmt.Errorf("read a snapshot of etcd: %w", err)
	}
	return nil
}

// Verify returns the number of keys and the last revision of a snapshot, or ErrDamaged.
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

// Restore creates the directory of an etcd, which must not exist, from a snapshot. Its revisions are higher than that
// of the snapshot and the one that clients are known to have seen, or 0.
func Restore(file, dir string, seen int64) error {
	_, revision, err := Verify(file)
	if err != nil {
		return err
	}
	c := Options{Dir: dir}.config(zap.NewNop())
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: c.Name, OutputDataDir: c.Dir, OutputWALDir: filepath.Join(c.Dir, "member", "wal"),
		PeerURLs: []string{c.AdvertisePeerUrls[0].String()}, InitialCluster: c.InitialCluster,
		InitialClusterToken: c.InitialClusterToken,
		RevisionBump:        uint64(bump + max(0, seen-revision)), MarkCompacted: true,
	})
	if err != nil {
		return fmt.Errorf("%w: restore %s: %w", ErrDamaged, file, err)
	}
	return nil
}
