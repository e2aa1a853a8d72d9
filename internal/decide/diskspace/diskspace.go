package diskspace

import (
	"fmt"
	"time"

	"volplane.dev/volplane/internal/volume"
)

const (
	mib = 1 << 20
	gib = 1 << 30
	// leastQuota and mostQuota bound the quota; etcd does not support larger databases.
	leastQuota, mostQuota = 256 * mib, 8 * gib
	// fullReserve is the size of the whole reserve: what a start on a full disk needs, and some more
	// for the writes before it.
	fullReserve = 160 * mib
	// slice is how much of the reserve is released in one step. A program that fills the disk takes one slice after the
	// other, so unmounts and deletions get some time.
	slice = 4 * mib
	// low is the free space below which the disk counts as full.
	low = 16 * mib
	// wasteful is how much unused space the database's file may have before it is defragmented.
	wasteful = 64 * mib
	// defragmentPause is the shortest time between two defragmentations.
	defragmentPause = 10 * time.Minute
	// compactPause is the shortest time between two compactions.
	compactPause = 30 * time.Second
	// urgentPause is used instead of both when deletions wait for the space, or soon would.
	urgentPause = 3 * time.Second
)

// Facts is what the decision depends on; sizes are in bytes.
type Facts struct {
	// Size is the size of the database's file.
	Size int64
	// Used is the size of the data in it.
	Used int64
	// Quota is the file size at which etcd refuses every write.
	Quota int64
	// Alarm says whether etcd refuses every write now.
	Alarm bool
	// Total is the size of the database's disk.
	Total int64
	// Free is the free space of that disk.
	Free int64
	// Reserve is the size of the reserve on that disk.
	Reserve int64
	// Compacted is the time since the last compaction.
	Compacted time.Duration
	// Defragmented is the time since the last defragmentation.
	Defragmented time.Duration
}

// Plan is the decision.
type Plan struct {
	// Compact says whether old revisions of objects are removed.
	Compact bool
	// Defragment says whether the file is written without its unused space.
	Defragment bool
	// Disarm says whether etcd's alarm is ended, so that it accepts writes again.
	Disarm bool
	// Reserve is the size that the reserve should have.
	Reserve int64
	// RefuseNew says whether new objects are refused.
	RefuseNew bool
	// RefuseChanges says whether changes are refused, too, except of objects that are being deleted.
	RefuseChanges bool
	// RefuseAll says whether reads are refused, too, because they would only wait.
	RefuseAll bool
	Because   volume.Because
}

// Quota returns the quota for a database of a size on a disk: a tenth of the disk within bounds, and
// always enough to delete the existing objects.
func Quota(total, size int64) int64 {
	return max(min(max(total/10, leastQuota), mostQuota), size+leastQuota)
}

// Kept returns the space that volumes on the same disk must leave free for the database, in addition to the reserve.
func Kept(total int64) int64 { return min(max(total/50, 4*low), gib, total/4) }

// soft returns the part of a quota above which new objects are refused.
func soft(quota int64) int64 { return quota / 10 * 8 }

// hard returns the part of a quota above which changes are refused.
func hard(quota int64) int64 { return quota / 10 * 9 }

// Decide decides about the disk space.
func Decide(f Facts) Plan {
	p := Plan{
		Reserve: reserve(f), Compact: compact(f), Defragment: defragment(f),
		Disarm:    f.Alarm && f.Size < f.Quota-f.Quota/50,
		RefuseNew: f.Alarm || f.Used > soft(f.Quota) || f.Free < low, RefuseChanges: f.Alarm || f.Used > hard(f.Quota),
	}
	p.Because = because(f, p)
	return p
}

// tight says whether the database's file is near its quota.
func (f Facts) tight() bool { return f.Size > soft(f.Quota) }

// compact decides about a compaction: in advance, and sooner when writes are refused.
func compact(f Facts) bool {
	if f.Alarm || f.Used > soft(f.Quota) {
		return f.Compacted >= urgentPause
	}
	return f.Compacted >= compactPause && (f.tight() || f.Free < low)
}

// defragment decides about a defragmentation: when enough space is unused, and the disk has space
// for the copy.
func defragment(f Facts) bool {
	waste := f.Size - f.Used
	least := max(wasteful, f.Used)
	pause := defragmentPause
	switch {
	case f.Alarm:
		least, pause = f.Quota/50, urgentPause
	case f.Size > hard(f.Quota):
		// At the quota etcd refuses deletions, too, however much of the file is unused.
		least, pause = f.Size/10, urgentPause
	case f.tight():
		least = f.Size / 10
	}
	return waste > least && f.Defragmented >= pause && f.Free > f.Used+low
}

// reserve returns the size that the reserve should have. On a full disk it releases a slice, down to
// what a start needs; it takes the whole reserve again when the disk has space for it and more.
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
		return volume.Sayf(volume.ReasonDiskFull, volume.User(), "the disk of the control plane has %s of %s free: new "+
			"objects are refused, deletions are not; free space on it, or delete volumes", Text(f.Free), Text(f.Total))
	case p.RefuseNew:
		return volume.Sayf(volume.ReasonDatabaseFull, volume.User(), "the control plane's database holds %s, new objects "+
			"are refused above %s, deletions are not; delete objects that are not needed", Text(f.Used), Text(soft(f.Quota)))
	}
	return volume.Because{
		Reason: volume.ReasonRoomLeft,
		Message: fmt.Sprintf("the database holds %s of %s, its disk has %s of %s free",
			Text(f.Used), Text(soft(f.Quota)), Text(f.Free), Text(f.Total)),
	}
}

// Text returns a size as text for people.
func Text(n int64) string {
	switch {
	case n >= 10*gib:
		return fmt.Sprintf("%d GiB", n/gib)
	case n >= gib:
		return fmt.Sprintf("%.1f GiB", float64(n)/gib)
	}
	return fmt.Sprintf("%d MiB", n/mib)
}

// electionLimit is how long the members may agree on nothing. An election takes one or two seconds, for which requests
// wait.
const electionLimit = 3 * time.Second

// Members is what the decision about an etcd that others run depends on. Its operators are responsible for its disks,
// compaction and defragmentation.
type Members struct {
	// All is the number of members that vote, Answer that of those that answer.
	All, Answer int
	// Apart is how long no member has answered a call that needs a quorum.
	Apart time.Duration
	// Size is the size of the database's file and Used that of its data, of all users of this etcd.
	Size, Used int64
	// Quota is the size of the file at which etcd refuses every write; 0 if it does not say.
	Quota int64
	// Alarm says whether etcd refuses every write now.
	Alarm bool
}

// DecideMembers decides what is refused.
func DecideMembers(m Members) Plan {
	full := m.Alarm || m.Quota > 0 && m.Used > soft(m.Quota)
	p := Plan{RefuseAll: m.Apart >= electionLimit}
	p.RefuseNew = p.RefuseAll || full
	p.RefuseChanges = p.RefuseAll || m.Alarm || m.Quota > 0 && m.Used > hard(m.Quota)
	switch quorum := m.All/2 + 1; {
	case p.RefuseAll && m.Answer < quorum:
		p.Because = volume.Sayf(volume.ReasonNoQuorum, volume.ControlPlane(), "the store has no quorum: %s; what is mounted "+
			"stays, and nothing can be changed until %d do", m.Answers(), quorum)
	case p.RefuseAll:
		p.Because = volume.Sayf(volume.ReasonNoQuorum, volume.ControlPlane(), "the store has no quorum: %s, but do not "+
			"agree with each other; what is mounted stays, and nothing can be changed until they do", m.Answers())
	case full:
		p.Because = volume.Sayf(volume.ReasonDatabaseFull, volume.ControlPlane(), "the store holds %s and is nearly full: "+
			"new objects are refused, deletions are not; have etcd defragmented, or delete objects that are not needed",
			Text(m.Used))
	default:
		p.Because = volume.Because{
			Reason: volume.ReasonRoomLeft, Message: fmt.Sprintf("the store holds %s, %s", Text(m.Used), m.Answers()),
		}
	}
	return p
}

// Answers says how many members answer.
func (m Members) Answers() string {
	verb := "answer"
	if m.Answer == 1 {
		verb = "answers"
	}
	return fmt.Sprintf("%d of %d members %s", m.Answer, m.All, verb)
}

// Path is the URL path at which the API server of a standalone control plane serves its Report.
const Path = "/volplane/room"

// Report has the facts and the decision as JSON; sizes are in bytes.
type Report struct {
	// Used is the size of the data in the database.
	Used int64 `json:"used"`
	// Size is the size of the database's file.
	Size int64 `json:"size"`
	// Limit is the value of Used above which new objects are refused.
	Limit int64 `json:"limit"`
	// Free is the free space of the disk.
	Free int64 `json:"free"`
	// Total is the size of the disk.
	Total int64 `json:"total"`
	// Reserve is the size of the reserve on the disk.
	Reserve int64 `json:"reserve"`
	// Refuses says whether new objects are refused.
	Refuses bool         `json:"refuses"`
	Reason  string       `json:"reason"`
	Message string       `json:"message"`
	Next    volume.Actor `json:"next,omitzero"`
	// Backup is the time of the newest backup in the data directory; nil if there is none.
	Backup *time.Time `json:"backup,omitempty"`
	// NoBackups means that no backups are made automatically.
	NoBackups bool `json:"noBackups,omitempty"`
	// Members describes an etcd that is run by others, which Free, Total and Reserve do not describe; nil for the control
	// plane's own.
	Members *MembersReport `json:"members,omitempty"`
}

// MembersReport lists the members of an external etcd that have responded.
type MembersReport struct {
	All    int `json:"all"`
	Answer int `json:"answer"`
	// Prefix begins all keys of the control plane.
	Prefix string `json:"prefix"`
}

// ReportOf returns the Report of facts and their plan.
func ReportOf(f Facts, p Plan) Report {
	return Report{
		Used: f.Used, Size: f.Size, Limit: soft(f.Quota), Free: f.Free, Total: f.Total, Reserve: f.Reserve,
		Refuses: p.RefuseNew, Reason: string(p.Because.Reason), Message: p.Because.Message, Next: p.Because.Next,
	}
}

// ReportOfMembers returns the Report of an etcd that others run.
func ReportOfMembers(m Members, p Plan, prefix string) Report {
	r := ReportOf(Facts{Used: m.Used, Size: m.Size, Quota: m.Quota}, p)
	r.Members = &MembersReport{All: m.All, Answer: m.Answer, Prefix: prefix}
	return r
}
