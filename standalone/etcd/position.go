package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"volplane.dev/volplane/internal/durable"
)

// Position is how far a store has come.
type Position struct {
	// Cluster is the id that a store gets when it is created or restored.
	Cluster string `json:"cluster"`
	// Revision is a revision that its database has on disk.
	Revision int64 `json:"revision"`
	// At is when it was recorded.
	At time.Time `json:"at,omitzero"`
}

// Lacks says whether a store at this position does not have everything that a store had when its position was recorded:
// it is an older copy of that store, or another store. The zero Position means that there is no record.
func (p Position) Lacks(recorded Position) bool {
	return recorded.Revision > 0 && (p.Cluster != recorded.Cluster || p.Revision < recorded.Revision)
}

// mostRecord limits the size of a record.
const mostRecord = 1 << 10

// Recorded reads the position that a member has last recorded in a file; it returns the zero Position if there is none.
func Recorded(path string) (p Position, err error) {
	err = durable.ReadJSON(path, mostRecord, &p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Position{}, nil
	case err == nil && (p.Revision <= 0 || p.Cluster == ""):
		err = fmt.Errorf("read %s: it does not name a position of etcd", path)
	}
	if err != nil {
		return Position{}, fmt.Errorf("%w; remove the file if etcd has not been replaced since the last start", err)
	}
	return p, nil
}

// startedKey is a key that each start writes.
const startedKey = "volplane/started"

// begin records the position at the start. It writes to the store first, so every copy that was made before the start
// is at an earlier position.
func (k *keeper) begin(ctx context.Context) error {
	if k.record == "" {
		return nil
	}
	// A full store refuses it, and starts nevertheless.
	_, _ = k.etcd.Server.Put(ctx, &pb.PutRequest{
		Key: []byte(startedKey), Value: []byte(time.Now().UTC().Format(time.RFC3339)),
	})
	return k.note()
}

// note records the position of the member, if it has changed since. The revision is on disk before the record is, so a
// crash never leaves a store that lacks recorded data.
func (k *keeper) note() error {
	if k.record == "" {
		return nil
	}
	server := k.etcd.Server
	p := Position{Cluster: server.Cluster().ID().String(), Revision: server.KV().Rev(), At: k.noted.At}
	if p == k.noted {
		return nil
	}
	server.Backend().ForceCommit() // until then it may be only in the log, which Check does not apply
	p.At = time.Now().UTC().Truncate(time.Second)
	if err := durable.WriteJSON(k.record, p); err != nil {
		return err
	}
	k.noted = p
	return nil
}
