package room_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/decide/room"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func TestDecideMembers(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct {
		argues string
		change func(*room.Members)
	}{
		{"an ordinary day", func(*room.Members) {}},
		{"one member of three may be away", func(m *room.Members) { m.Answer = 2 }},
		{"an election is waited for", func(m *room.Members) { m.Answer, m.Apart = 2, 2900*time.Millisecond }},
		{"two are away", func(m *room.Members) { m.Answer, m.Apart = 1, 3*time.Second }},
		{"all are", func(m *room.Members) { m.Answer, m.Apart = 0, time.Hour }},
		{"they do not reach each other", func(m *room.Members) { m.Answer, m.Apart = 2, 3*time.Second }},
		{"of two members both are needed", func(m *room.Members) { m.All, m.Answer, m.Apart = 2, 1, time.Minute }},
		{"a member by itself", func(m *room.Members) { m.All, m.Answer, m.Apart = 1, 0, time.Minute }},
		{"nearly full", func(m *room.Members) { m.Used = 801 * mib }},
		{"nearer", func(m *room.Members) { m.Used = 901 * mib }},
		{"as near to the quota as may be", func(m *room.Members) { m.Used = 800 * mib }},
		{"etcd refuses writes", func(m *room.Members) { m.Alarm = true }},
		{"an older etcd does not say its quota", func(m *room.Members) { m.Quota = 0 }},
		{"and says only that it is full", func(m *room.Members) { m.Quota, m.Alarm = 0, true }},
		{"without a quorum nothing else matters", func(m *room.Members) {
			m.Answer, m.Apart, m.Alarm = 1, time.Minute, true
		}},
	} {
		m := room.Members{All: 3, Answer: 3, Size: 30 * mib, Used: 20 * mib, Quota: 1000 * mib}
		c.change(&m)
		p := room.DecideMembers(m)
		fmt.Fprintf(&out, "# %s\nall=%d answer=%d apart=%s used=%s quota=%s alarm=%v\n----\n", c.argues, m.All, m.Answer,
			m.Apart, room.Text(m.Used), room.Text(m.Quota), m.Alarm)
		fmt.Fprintf(&out, "refuse new=%v changes=%v all=%v\n%s: %s -> %s\n\n", p.RefuseNew, p.RefuseChanges, p.RefuseAll,
			p.Because.Reason, p.Because.Message, p.Because.Next)
	}
	golden.Equal(t, "testdata/members.txt", out.String())
}

// TestReportOfMembers: the report says what was decided.
func TestReportOfMembers(t *testing.T) {
	m := room.Members{All: 3, Answer: 1, Apart: time.Minute, Size: 30 * mib, Used: 20 * mib, Quota: 1000 * mib}
	p := room.DecideMembers(m)
	want := room.Report{
		Used: 20 * mib, Size: 30 * mib, Limit: 800 * mib, Refuses: true, Reason: "StoreWithoutQuorum",
		Message: p.Because.Message, Next: volume.ControlPlane(),
		Members: &room.MembersReport{All: 3, Answer: 1, Prefix: "/volplane/here"},
	}
	if diff := cmp.Diff(want, room.ReportOfMembers(m, p, "/volplane/here")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
