package external

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/volume"
)

const (
	// lookEvery is the interval at which the status of the members is queried, and lookLimit the time limit of a query.
	lookEvery = time.Second
	lookLimit = time.Second
)

// member is the connection to one address.
type member struct {
	server string
	conn   *grpc.ClientConn
	key    []byte
}

// answer is what an address has answered.
type answer struct {
	server string
	status *pb.StatusResponse
	err    error
	// all is the number of members that vote, 0 if it does not say.
	all int
	// agrees means that it has answered a call that needs a quorum.
	agrees bool
	// revision is that of the store according to a quorum; 0 if the store does not permit this client to read. claimed
	// means that the prefix has an identity, which says the format of the keys.
	revision int64
	claimed  bool
	format   int
}

// cluster returns the id of the store to which the address belongs.
func (a answer) cluster() string { return types.ID(a.status.GetHeader().GetClusterId()).String() }

// ask queries the status of a member, which needs no other member, and reads a key, which needs a quorum.
func (m *member) ask(ctx context.Context) answer {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, asking{}, true), lookLimit)
	defer cancel()
	a := answer{server: m.server}
	if a.status, a.err = pb.NewMaintenanceClient(m.conn).Status(ctx, &pb.StatusRequest{}); a.err != nil {
		return a
	}
	if list, err := pb.NewClusterClient(m.conn).MemberList(ctx, &pb.MemberListRequest{}); err == nil {
		for _, other := range list.GetMembers() {
			if !other.GetIsLearner() {
				a.all++
			}
		}
	}
	found, err := pb.NewKVClient(m.conn).Range(ctx, &pb.RangeRequest{Key: m.key})
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
	default:
		a.agrees = true // also if it permits nothing
		a.revision, a.claimed = found.GetHeader().GetRevision(), found.GetCount() > 0
		for _, kv := range found.GetKvs() {
			a.format = formatOf(kv.GetValue())
		}
	}
	return a
}

// state is what the members have answered.
type state struct {
	diskspace.Members
	plan diskspace.Plan
	// cluster is the id of the first store that responded, and others the number of other stores that respond now.
	cluster string
	others  int
	// revision is the last one from a quorum, and begun means that the prefix has had an identity since.
	revision int64
	begun    bool
	// over says why the store may not be used any more: it is not the one that responded before, or a newer program
	// writes to it. It is nil if the store may be used.
	over error
	// answered are the addresses that responded, agreeing those of them that answered a call which needs a quorum; away
	// says, by address, why the others did not respond.
	answered []string
	agreeing []string
	away     []string
	// leader is the id of the member that leads, as far as one has answered.
	leader uint64
	// looked is when the members were queried, agreed when one last answered a call which needs a quorum.
	looked, agreed time.Time
}

// String says which members respond, and why others do not.
func (s state) String() string {
	return strings.Join(append([]string{s.Answers()}, s.away...), "; ")
}

// ask queries the status of all members.
func (s *Store) ask(ctx context.Context) []answer {
	answers := make([]answer, len(s.members))
	var asked sync.WaitGroup
	for i, m := range s.members {
		asked.Go(func() { answers[i] = m.ask(ctx) })
	}
	asked.Wait()
	return answers
}

// look updates the state with the members' answers.
func (s *Store) look(ctx context.Context) state {
	s.mu.Lock()
	before := s.latest
	s.mu.Unlock()
	answers := s.ask(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = s.latest.after(answers, time.Now())
	s.latest.over = cmp.Or(s.latest.over, before.lost(answers))
	return s.latest
}

// after returns the state that follows from answers. What no answer says stays as it was.
func (s state) after(answers []answer, now time.Time) state {
	next := state{
		Members: diskspace.Members{All: s.All, Size: s.Size, Used: s.Used, Quota: s.Quota},
		cluster: s.cluster, revision: s.revision, begun: s.begun, looked: now, agreed: s.lastAgreed(now),
		over: s.over, leader: s.leading(answers),
	}
	voters, others := map[uint64]bool{}, map[string]bool{}
	for _, a := range answers {
		if a.err != nil {
			next.away = append(next.away, fmt.Sprintf("%s does not: %s", a.server, reason(a.err)))
			continue
		}
		next.cluster = cmp.Or(next.cluster, a.cluster())
		if a.cluster() != next.cluster {
			others[a.cluster()] = true
			next.away = append(next.away, a.server+" belongs to another store")
			continue
		}
		next.answered = append(next.answered, a.server)
		next.revision = max(next.revision, a.revision)
		next.Size, next.Used, next.Quota = a.status.GetDbSize(), a.status.GetDbSizeInUse(), a.status.GetDbSizeQuota()
		next.Alarm = next.Alarm || slices.ContainsFunc(a.status.GetErrors(), func(e string) bool {
			return strings.Contains(e, pb.AlarmType_NOSPACE.String())
		})
		if a.agrees {
			next.agreeing = append(next.agreeing, a.server)
		}
		if !a.status.GetIsLearner() {
			voters[a.status.GetHeader().GetMemberId()] = true
		}
		if a.all > 0 {
			next.All = a.all
		}
	}
	next.others, next.Answer = len(others), len(voters)
	next.over = cmp.Or(next.over, next.foreign())
	if next.All == 0 {
		next.All = len(answers) // no answer has the number of members
	}
	if len(next.agreeing) > 0 {
		next.agreed = now
	} else {
		next.Apart = max(now.Sub(next.agreed), 1)
	}
	next.plan = diskspace.DecideMembers(next.Members)
	return next
}

// leading returns the id of the member that leads according to the latest election that an answer knows.
func (s state) leading(answers []answer) uint64 {
	leader, term := s.leader, uint64(0)
	for _, a := range answers {
		if a.status.GetLeader() != 0 && a.status.GetRaftTerm() > term {
			leader, term = a.status.GetLeader(), a.status.GetRaftTerm()
		}
	}
	return leader
}

// usable returns the addresses for requests. A member that hangs would delay its share of them until its connection
// ends, and one that the other members do not reach until they time out. During an election no members agree.
func (s state) usable() []string {
	if len(s.agreeing) > 0 {
		return s.agreeing
	}
	return s.answered
}

// foreign returns an error if only members of other stores answer.
func (s state) foreign() error {
	if s.others > 0 && len(s.answered) == 0 {
		return fmt.Errorf("%w: all members that answer belong to another store than before", ErrReplaced)
	}
	return nil
}

// lost returns an error if a quorum lacks something that it had before, or if the keys have a format that this program
// does not know: the program that has changed it must not find objects of the former one later.
func (s state) lost(answers []answer) error {
	for _, a := range answers {
		switch {
		case a.revision == 0, s.cluster != a.cluster():
		case a.revision < s.revision:
			return fmt.Errorf("%w: its revision was %d, and is %d", ErrReplaced, s.revision, a.revision)
		case s.begun && !a.claimed:
			return fmt.Errorf("%w: the keys of this control plane are gone", ErrReplaced)
		case s.begun && a.format > Format:
			return fmt.Errorf("%w: a control plane writes format %d, this program knows %d", ErrNewer, a.format, Format)
		}
	}
	return nil
}

// reason returns the words of an error without those of gRPC around them.
func reason(err error) string {
	words := strings.TrimPrefix(status.Convert(err).Message(), "connection error: desc = ")
	return strings.TrimPrefix(strings.Trim(words, `"`), "transport: Error while dialing: ")
}

// lastAgreed returns since when the members may agree on nothing: not while this process itself has slept.
func (s state) lastAgreed(now time.Time) time.Time {
	if s.looked.IsZero() {
		return now
	}
	slept := now.Sub(s.looked) - lookEvery - lookLimit
	return s.agreed.Add(max(slept, 0))
}

// follow queries the members until ctx ends, and makes calls be refused that would wait for a quorum.
func (s *Store) follow(ctx context.Context) {
	defer close(s.ended)
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	notes := time.NewTicker(noteEvery)
	defer notes.Stop()
	lost, leader := false, uint64(0)
	for {
		now := s.look(ctx)
		if ctx.Err() != nil {
			return
		}
		if now.over != nil {
			s.giveUp(now.over)
			return
		}
		if now.plan.RefuseAll != lost {
			lost = now.plan.RefuseAll
			s.turn(now)
		}
		if now.leader != leader {
			leader = now.leader
			s.fence.lead()
		}
		s.use(now.usable())
		select {
		case <-ctx.Done():
			return
		case <-notes.C:
			_ = s.note() // the older record stays true
		case <-ticker.C:
		}
	}
}

// use sends requests to these addresses from now on.
func (s *Store) use(servers []string) {
	if len(servers) > 0 && !slices.Equal(servers, s.used) {
		s.used = servers
		s.client.SetEndpoints(servers...)
	}
}

// giveUp ends the use of a store that is not the one it was, before any object that it lacks counts as deleted, or that
// a newer program writes to. The record stays, so the next start compares again.
func (s *Store) giveUp(over error) {
	err := fmt.Errorf("%w; the next start compares it with what was recorded", over)
	s.quorum.set(&volume.Because{Message: err.Error()})
	s.mu.Lock()
	s.record = ""
	s.mu.Unlock()
	s.failed <- err
}

// turn makes requests be refused when the quorum is lost, and accepted again when it is back, and logs both.
func (s *Store) turn(now state) {
	if now.plan.RefuseAll {
		s.quorum.set(&now.plan.Because)
		s.log.Error(now.plan.Because.Message, "reason", now.plan.Because.Reason, "away", now.away)
		return
	}
	s.quorum.set(nil)
	s.log.Info("the store has a quorum again", "members", now.Answers())
}
