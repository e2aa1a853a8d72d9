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

	"volplane.dev/volplane/internal/decide/diskspace"
)

const (
	// keepEvery is the interval at which the free space is checked. A writer can fill a disk in less time, so the space
	// that etcd needs until the next check is preallocated.
	keepEvery = time.Second
	// ahead is how much space is preallocated for the growth of the database: etcd
	// itself would notice a full disk only when it writes.
	ahead = 32 << 20
	// noteEvery is the interval at which the position is recorded.
	noteEvery = time.Minute
)

// keeper maintains the disk space that a member needs.
type keeper struct {
	etcd *embed.Etcd
	// reserve is the path of the file that holds room in reserve; "" means none.
	reserve string
	// record is the path of the file with the position, "" means none; noted is the last recorded position.
	record                  string
	noted                   Position
	compacted, defragmented time.Time
	// cancel ends the runs, done says that the last one has ended.
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	facts diskspace.Facts
	plan  diskspace.Plan
}

// Room returns the available space and the resulting plan.
func (s *Server) Room() (diskspace.Facts, diskspace.Plan) {
	s.keeper.mu.Lock()
	defer s.keeper.mu.Unlock()
	return s.keeper.facts, s.keeper.plan
}

// run maintains the space until etcd stops, or ctx ends.
func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	notes := time.NewTicker(noteEvery)
	defer notes.Stop()
	for {
		select {
		case <-k.etcd.Server.StoppingNotify():
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
			_ = k.keep(ctx)
		case <-notes.C:
			_ = k.note() // the older record stays true
		}
	}
}

// stop ends the runs, and waits for the current one: etcd panics when its database is closed during a compaction that a
// caller waits for.
func (k *keeper) stop() {
	k.cancel()
	<-k.done
}

// keep executes the current plan. After a failure it is repeated at the next interval,
// and Room reports no space.
func (k *keeper) keep(ctx context.Context) error {
	f, err := k.gather()
	if err != nil {
		return err
	}
	p := diskspace.Decide(f)
	k.mu.Lock()
	k.facts, k.plan = f, p
	k.mu.Unlock()
	return k.apply(ctx, f, p)
}

func (k *keeper) gather() (diskspace.Facts, error) {
	backend := k.etcd.Server.Backend()
	f := diskspace.Facts{
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

func (k *keeper) apply(ctx context.Context, f diskspace.Facts, p diskspace.Plan) error {
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

// compact removes old revisions of objects.
func (k *keeper) compact(ctx context.Context) error {
	_, err := k.etcd.Server.Compact(ctx, &pb.CompactionRequest{Revision: k.etcd.Server.KV().Rev(), Physical: true})
	return err
}

// disk returns free and total space of the disk of a directory.
func disk(dir string) (free, total int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, fmt.Errorf("room of %s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize, nil
}

// hold resizes the reserve.
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
		// An incomplete reserve would be counted with its full size.
		return errors.Join(fmt.Errorf("reserve: %w", err), os.Remove(path))
	}
	return nil
}

// allot preallocates the blocks of the database and of its next growth. It does nothing
// on filesystems that do not support this.
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

// quota returns the current quota of the database in a directory.
func (o Options) quota() int64 {
	if o.Quota != 0 {
		return o.Quota
	}
	_, total, err := disk(o.Dir)
	if err != nil {
		return diskspace.Quota(0, 0)
	}
	size := int64(0)
	if info, err := os.Stat(datadir.ToBackendFileName(memberDir(o.Dir))); err == nil {
		size = info.Size()
	}
	return diskspace.Quota(total, size)
}

// tidy deletes incomplete copies of the database after a crash.
func (o Options) tidy() {
	left, _ := filepath.Glob(filepath.Join(datadir.ToSnapDir(memberDir(o.Dir)), "db.tmp.*"))
	for _, path := range left {
		_ = os.Remove(path)
	}
}
