package room

import (
	"fmt"
	"time"

	"volplane.dev/volplane/internal/volume"
)

const (
	mib = 1 << 20
	gib = 1 << 30
	// leastQuota and mostQuota bound the database: etcd is not made for more.
	leastQuota, mostQuota = 256 * mib, 8 * gib
	// fullReserve is what a start on a full disk needs, and a little more for
	// what must be written to get there.
	fullReserve = 160 * mib
	// slice is how much of the reserve is given up at once: a writer that fills
	// the disk gets a slice, and what unmounts and deletes has had a moment.
	slice = 4 * mib
	// low is the free space below which the disk counts as full.
	low = 16 * mib
	// wasteful is what a database may waste before it is written anew.
	wasteful = 64 * mib
	// pause is the least time between two copies of the database.
	pause = 10 * time.Minute
	// rest is the least time between two compactions, urgent the one between
	// two that deletions wait for.
	rest, urgent = 30 * time.Second, 3 * time.Second
)

// Facts are sizes in bytes.
type Facts struct {
	// Size is the database file's, Used what of it holds something, and Quota
	// the size at which etcd refuses every write.
	Size, Used, Quota int64
	// Alarm says that it refuses them.
	Alarm bool
	// Total and Free are the disk's that holds the database.
	Total, Free int64
	// Reserve is what is held in reserve on it.
	Reserve int64
	// Compacted and Defragmented are the times since both were done.
	Compacted, Defragmented time.Duration
}

// Plan says what is to be done.
type Plan struct {
	// Compact forgets what objects were before, Defragment gives what is unused
	// back to the disk, Disarm lets etcd take writes again.
	Compact, Defragment, Disarm bool
	// Reserve is what shall be held in reserve.
	Reserve int64
	// RefuseNew refuses new objects, RefuseChanges also changes of those that
	// are not being deleted.
	RefuseNew, RefuseChanges bool
	Because                  volume.Because
}

// Quota returns the quota of a database of that size on a disk: a tenth of it
// within reason, and always enough to delete what is there.
func Quota(total, size int64) int64 {
	return max(min(max(total/10, leastQuota), mostQuota), size+leastQuota)
}

// Kept returns what volumes on the same disk leave free, for the database to
// grow, beside the reserve.
func Kept(total int64) int64 { return min(max(total/50, 4*low), gib, total/4) }

// soft is the part of a quota above which new objects are refused, hard the
// one above which changes are.
func soft(quota int64) int64 { return quota / 10 * 8 }
func hard(quota int64) int64 { return quota / 10 * 9 }

// Decide says what is to be done.
func Decide(f Facts) Plan {
	p := Plan{
		Reserve: reserve(f), Compact: compact(f), Defragment: defragment(f),
		Disarm:    f.Alarm && f.Size < f.Quota-f.Quota/50,
		RefuseNew: f.Alarm || f.Used > soft(f.Quota) || f.Free < low, RefuseChanges: f.Alarm || f.Used > hard(f.Quota),
	}
	p.Because = because(f, p)
	return p
}

// tight says that the database file is near its quota, whatever it holds.
func (f Facts) tight() bool { return f.Size > soft(f.Quota) }

// compact wants what objects were before forgotten: in good time, and at once
// when somebody waits for it.
func compact(f Facts) bool {
	if f.Alarm || f.Used > soft(f.Quota) {
		return f.Compacted >= urgent
	}
	return f.Compacted >= rest && (f.tight() || f.Free < low)
}

// defragment wants the file written anew when that pays, and there is room for
// the copy.
func defragment(f Facts) bool {
	waste := f.Size - f.Used
	least := max(wasteful, f.Used)
	between := pause
	switch {
	case f.Alarm:
		least, between = f.Quota/50, urgent
	case f.tight():
		least = f.Size / 10
	}
	return waste > least && f.Defragmented >= between && f.Free > f.Used+low
}

// reserve gives up a slice of the reserve on a full disk, down to what a start
// needs, and takes it back when there is room for all of it and more.
func reserve(f Facts) int64 {
	whole := min(fullReserve, f.Total/8)
	switch missing := whole - f.Reserve; {
	case f.Free < low:
		return min(max(f.Reserve-slice, whole-low), f.Reserve)
	case missing > 0 && f.Free-missing > 4*low:
		return whole
	}
	return f.Reserve
}

func because(f Facts, p Plan) volume.Because {
	switch {
	case f.Free < low:
		return volume.Because{Reason: volume.ReasonDiskFull, Next: "user", Message: fmt.Sprintf(
			"the disk of the control plane has %s of %s free: new objects are refused, deletions are not; make room on it, or "+
				"delete volumes", Text(f.Free), Text(f.Total))}
	case p.RefuseNew:
		return volume.Because{Reason: volume.ReasonDatabaseFull, Next: "user", Message: fmt.Sprintf(
			"the control plane's database holds %s, new objects are refused above %s, deletions are not; delete objects that "+
				"nobody needs", Text(f.Used), Text(soft(f.Quota)))}
	}
	return volume.Because{
		Reason: volume.ReasonRoomLeft,
		Message: fmt.Sprintf("the database holds %s of %s, its disk has %s of %s free",
			Text(f.Used), Text(soft(f.Quota)), Text(f.Free), Text(f.Total)),
	}
}

// Text writes a size as people read it.
func Text(n int64) string {
	switch {
	case n >= 10*gib:
		return fmt.Sprintf("%d GiB", n/gib)
	case n >= gib:
		return fmt.Sprintf("%.1f GiB", float64(n)/gib)
	}
	return fmt.Sprintf("%d MiB", n/mib)
}
