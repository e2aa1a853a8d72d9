package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/decide/room"
)

const (
	// keepEvery is the pause between two looks at the room that is left. A
	// writer can fill a disk in less: what etcd needs meanwhile is allotted.
	keepEvery = time.Second
	// ahead is how much of the disk is allotted to the database before it
	// grows: etcd itself would only find out when it writes.
	ahead = 32 << 20
)

// keeper looks after the room that a member needs.
type keeper struct {
	etcd *embed.Etcd
	// reserve is the path of the file that holds room in reserve; "" for none.
	reserve                 string
	compacted, defragmented time.Time

	mu    sync.Mutex
	facts room.Facts
	plan  room.Plan
}

// Room returns what room there is and what follows from it.
func (s *Server) Room() (room.Facts, room.Plan) {
	s.keeper.mu.Lock()
	defer s.keeper.mu.Unlock()
	return s.keeper.facts, s.keeper.plan
}

// run looks after the room until etcd stops.
func (k *keeper) run(ctx context.Context) {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-k.etcd.Server.StoppingNotify():
			return
		case <-ticker.C:
			_ = k.keep(ctx)
		}
	}
}

// keep does what has to be done now. What fails is done again at the next turn,
// and Room says that there is no room.
func (k *keeper) keep(ctx context.Context) error {
	f, err := k.gather()
	if err != nil {
		return err
	}
	p := room.Decide(f)
	k.mu.Lock()
	k.facts, k.plan = f, p
	k.mu.Unlock()
	return k.apply(ctx, f, p)
}

func (k *keeper) gather() (room.Facts, error) {
	backend := k.etcd.Server.Backend()
	f := room.Facts{
		Size: backend.Size(), Used: backend.SizeInUse(), Quota: k.etcd.Server.Cfg.QuotaBackendBytes,
		Compacted: time.Since(k.compacted), Defragmented: time.Since(k.defragmented),
	}
	for _, a := range k.etcd.Server.Alarms() {
		f.Alarm = f.Alarm || a.Alarm == pb.AlarmType_NOSPACE
	}
	var err error
	f.Free, f.Total, err = disk(k.etcd.Config().Dir)
	if info, err := os.Stat(k.reserve); err == nil {
		f.Reserve = info.Size()
	}
	return f, err
}

func (k *keeper) apply(ctx context.Context, f room.Facts, p room.Plan) error {
	var failed []error
	if k.reserve != "" && p.Reserve != f.Reserve {
		failed = append(failed, hold(k.reserve, f.Reserve, p.Reserve))
	}
	if k.reserve != "" {
		allot(datadir.ToBackendFileName(k.etcd.Config().Dir))
	}
	if p.Compact {
		k.compacted = time.Now()
		failed = append(failed, k.compact(ctx))
	}
	if p.Defragment {
		k.defragmented = time.Now()
		failed = append(failed, k.etcd.Server.Backend().Defrag())
	}
	if p.Disarm {
		_, err := k.etcd.Server.Alarm(ctx, &pb.AlarmRequest{
			Action: pb.AlarmRequest_DEACTIVATE, MemberID: uint64(k.etcd.Server.MemberID()), Alarm: pb.AlarmType_NOSPACE,
		})
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// compact forgets what objects were before.
func (k *keeper) compact(ctx context.Context) error {
	_, err := k.etcd.Server.Compact(ctx, &pb.CompactionRequest{Revision: k.etcd.Server.KV().Rev(), Physical: true})
	return err
}

// disk returns the room of the disk that holds a directory.
func disk(dir string) (free, total int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, fmt.Errorf("room of %s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize, nil
}

// hold makes the reserve that large.
func hold(path string, has, want int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("reserve: %w", err)
	}
	defer f.Close()
	if want > has {
		err = unix.Fallocate(int(f.Fd()), 0, 0, want)
	} else {
		err = f.Truncate(want)
	}
	if err != nil {
		// One that could not be made whole would count for more than it is.
		return errors.Join(fmt.Errorf("reserve: %w", err), os.Remove(path))
	}
	return nil
}

// allot has the disk give the database the blocks of what it has and of what it
// may soon grow by. Where a filesystem cannot, nothing is allotted.
func allot(path string) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	var s unix.Stat_t
	if unix.Fstat(int(f.Fd()), &s) == nil && s.Blocks*512 < s.Size+ahead/2 {
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, s.Size+ahead)
	}
}

// quota returns the quota of the database in a directory as it is now.
func (o Options) quota() int64 {
	if o.Quota != 0 {
		return o.Quota
	}
	_, total, err := disk(o.Dir)
	if err != nil {
		return room.Quota(0, 0)
	}
	size := int64(0)
	if info, err := os.Stat(datadir.ToBackendFileName(memberDir(o.Dir))); err == nil {
		size = info.Size()
	}
	return room.Quota(total, size)
}

// tidy deletes the copies of the database that were being made at a kill.
func (o Options) tidy() {
	left, _ := filepath.Glob(filepath.Join(datadir.ToSnapDir(memberDir(o.Dir)), "db.tmp.*"))
	for _, path := range left {
		_ = os.Remove(path)
	}
}
