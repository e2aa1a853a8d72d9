package room

import (
	"fmt"
	"time"

	"volplane.dev/volplane/internal/volume"
)

// electionLimit is how long the members may agree on nothing. An election takes one or two seconds, for which requests
// wait.
const electionLimit = 3 * time.Second

// Members is what the decision about an etcd that others run depends on. Its disks, and when it is compacted and
// defragmented, are their business.
type Members struct {
	// All is the number of members that vote, Answer that of those that answer.
	All, Answer int
	// Apart is how long no member has answered what only a quorum can.
	Apart time.Duration
	// Size is the size of the database's file and Used that of the data in it, of all who use this etcd.
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
