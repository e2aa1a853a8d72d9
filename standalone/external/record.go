package external

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/standalone/etcd"
)

const (
	// recordName is the file of a data directory that records where its objects are, if others run the store.
	recordName = "store.json"
	// mostRecord limits its size.
	mostRecord = 64 << 10
	// startedKey is a key that each start writes, so that every copy from before the start is at an earlier position. It
	// is the fence of writes, too.
	startedKey = own + "started"
	// noteEvery is the interval at which the position is recorded.
	noteEvery = time.Minute
)

// Recorded returns where the objects of a data directory are, zero for its own etcd.
func Recorded(dataDir string) (o Options, err error) {
	path := filepath.Join(dataDir, recordName)
	err = durable.ReadJSON(path, mostRecord, &o)
	if errors.Is(err, fs.ErrNotExist) {
		return Options{}, nil
	}
	if err == nil {
		err = o.Validate()
	}
	if err != nil {
		return Options{}, fmt.Errorf("%s, which says where the objects are: %w", path, err)
	}
	return o, nil
}

// RecordOf returns the path of the file that records where the objects of a data directory are, "" if it does not
// exist.
func RecordOf(dataDir string) string {
	path := filepath.Join(dataDir, recordName)
	if _, err := os.Lstat(path); err != nil {
		return ""
	}
	return path
}

// Record records where the objects of a data directory are.
func Record(dataDir string, o Options) error {
	path := filepath.Join(dataDir, recordName)
	if o.IsZero() {
		return durable.Remove(path)
	}
	return durable.WriteJSON(path, o)
}

// Position returns how far the store has come, as its members have answered last.
func (s *Store) Position() etcd.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return etcd.Position{Cluster: s.latest.cluster, Revision: s.latest.revision}
}

// Begin records the position in a file from now on.
func (s *Store) Begin(ctx context.Context, record string) error {
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	r, err := s.client.Put(ctx, s.options.Prefix+startedKey, started())
	if err != nil {
		return s.unreadable(err)
	}
	s.fence.know(r.Header.Revision)
	s.mu.Lock()
	s.record, s.latest.revision, s.latest.begun = record, max(s.latest.revision, r.Header.Revision), true
	s.mu.Unlock()
	return s.note()
}

// started returns the value of startedKey.
func started() string { return time.Now().UTC().Format(time.RFC3339) }

// note records the position. Everything that members have confirmed is on the disks of most of them.
func (s *Store) note() error {
	p := s.Position()
	s.mu.Lock()
	record := s.record
	s.mu.Unlock()
	if record == "" {
		return nil
	}
	p.At = time.Now().UTC().Truncate(time.Second)
	return durable.WriteJSON(record, p)
}
