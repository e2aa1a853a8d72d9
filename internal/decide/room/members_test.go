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

// TestDecideMembers plays a table of what differs from an ordinary day.
func TestDecideMembers(t *testing.T) {
	golden.Play(t, "testdata/members.txt", func(t *testing.T, given string) string {
		m := room.Members{All: 3, Answer: 3, Size: 30 * mib, Used: 20 * mib, Quota: 1000 * mib}
		golden.Read(t, &m, strings.Fields(given))
		p := room.DecideMembers(m)
		return fmt.Sprintf("refuse new=%v changes=%v all=%v\n%s: %s -> %s", p.RefuseNew, p.RefuseChanges, p.RefuseAll,
			p.Because.Reason, p.Because.Message, p.Because.Next)
	})
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
