package external

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TestState: the states that follow from answers, one query after the other.
func TestState(t *testing.T) {
	t.Parallel()
	is := func(member uint64, agrees bool) answer {
		return answer{server: "https://m:1", all: 3, agrees: agrees, revision: 5, status: &pb.StatusResponse{
			Header: &pb.ResponseHeader{ClusterId: 7, MemberId: member}, DbSize: 2, DbSizeInUse: 1,
		}}
	}
	away := answer{server: "https://m:1", err: errors.New("it is gone")}
	learner := is(3, false)
	learner.status.IsLearner = true
	elsewhere := is(3, true)
	elsewhere.status.Header.ClusterId = 8
	begin := time.Unix(1000, 0)
	var s state
	for _, look := range []struct {
		argues       string
		after        time.Duration
		answers      []answer
		answer, from int
		others       int
		apart        time.Duration
		refuses      bool
	}{
		{"nothing is known yet", 0, []answer{away, away, away}, 0, 3, 0, 1, false},
		{"all answer", time.Second, []answer{is(1, true), is(2, true), is(3, true)}, 3, 3, 0, 0, false},
		{"one address twice is one member", time.Second, []answer{is(1, true), is(1, true)}, 1, 3, 0, 0, false},
		{"a learner has no vote", time.Second, []answer{is(1, true), is(2, true), learner}, 2, 3, 0, 0, false},
		{"two stores", time.Second, []answer{is(1, true), is(2, true), elsewhere}, 2, 3, 1, 0, false},
		{"one that agrees is enough", time.Second, []answer{is(1, false), is(2, true), away}, 2, 3, 0, 0, false},
		{"an election", 2 * time.Second, []answer{is(1, false), is(2, false), away}, 2, 3, 0, 2 * time.Second, false},
		{"that does not end", time.Second, []answer{is(1, false), away, away}, 1, 3, 0, 3 * time.Second, true},
		{"it is over", time.Second, []answer{is(1, true), is(2, true), away}, 2, 3, 0, 0, false},
		{"this process has slept for a minute", time.Minute, []answer{away, away, away}, 0, 3, 0, 2 * time.Second, false},
		{"and was not mistaken", time.Second, []answer{away, away, away}, 0, 3, 0, 3 * time.Second, true},
	} {
		begin = begin.Add(look.after)
		s = s.after(look.answers, begin)
		if s.Answer != look.answer || s.All != look.from || s.others != look.others || s.Apart != look.apart ||
			s.plan.RefuseAll != look.refuses {
			t.Errorf("%s: %+v; want %+v", look.argues, s, look)
		}
	}
	if s.revision != 5 || s.Used != 1 || s.cluster != "7" {
		t.Errorf("what was known is forgotten: %+v", s)
	}
}

// TestUsable: requests go to the members that agree with a quorum, as long as one does.
func TestUsable(t *testing.T) {
	t.Parallel()
	is := func(server string, agrees bool) answer {
		return answer{server: server, agrees: agrees, status: &pb.StatusResponse{Header: &pb.ResponseHeader{ClusterId: 7}}}
	}
	away := answer{server: "away", err: errors.New("it is gone")}
	for name, c := range map[string]struct {
		answers []answer
		want    []string
	}{
		"all agree":                          {[]answer{is("a", true), is("b", true)}, []string{"a", "b"}},
		"one has died":                       {[]answer{is("a", true), away, is("c", true)}, []string{"a", "c"}},
		"one does not hear the others":       {[]answer{is("a", true), is("b", false), is("c", true)}, []string{"a", "c"}},
		"an election":                        {[]answer{is("a", false), is("b", false), away}, []string{"a", "b"}},
		"none answers, and nothing is known": {[]answer{away, away}, nil},
	} {
		if got := (state{}).after(c.answers, time.Unix(1000, 0)).usable(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestReplaced: all signs that a store is not the one that responded before, or has gone back to an older state.
func TestReplaced(t *testing.T) {
	t.Parallel()
	of := func(cluster uint64, revision int64, claimed bool) answer {
		return answer{agrees: true, revision: revision, claimed: claimed, status: &pb.StatusResponse{
			Header: &pb.ResponseHeader{ClusterId: cluster},
		}}
	}
	away, denied, newer := answer{err: errors.New("it is gone")}, of(7, 0, false), of(7, 6, true)
	newer.format = Format + 1
	for name, c := range map[string]struct {
		answers []answer
		want    string
	}{
		"it goes on":                     {[]answer{of(7, 5, true), of(7, 6, true)}, ""},
		"no member answers":              {[]answer{away, away}, ""},
		"it permits nothing any more":    {[]answer{denied}, ""},
		"one address is another store's": {[]answer{of(8, 1, false), of(7, 5, true)}, ""},
		"all are another store's":        {[]answer{of(8, 9, true), away}, "another store"},
		"an older copy":                  {[]answer{of(7, 4, true)}, "its revision was 5, and is 4"},
		"its keys were deleted":          {[]answer{of(7, 6, false)}, "are gone"},
		"a newer program writes to it":   {[]answer{newer}, "format 2, this program knows 1"},
	} {
		before := state{cluster: "7", revision: 5, begun: true}
		after := before.after(c.answers, time.Unix(1000, 0))
		got := errors.Join(after.over, before.lost(c.answers))
		if c.want == "" && got != nil || c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
		if after.cluster != "7" || after.revision < 5 {
			t.Errorf("%s: what was known is forgotten: %+v", name, after)
		}
	}
}
