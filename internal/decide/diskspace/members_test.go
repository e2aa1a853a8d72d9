package diskspace_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestDecideMembers plays a table of what differs from an ordinary day.
func TestDecideMembers(t *testing.T) {
	golden.Play(t, "testdata/members.txt", func(t *testing.T, given string) string {
		m := diskspace.Members{All: 3, Answer: 3, Size: 30 * mib, Used: 20 * mib, Quota: 1000 * mib}
		golden.Read(t, &m, strings.Fields(given))
		p := diskspace.DecideMembers(m)
		return fmt.Sprintf("refuse new=%v changes=%v all=%v\n%s: %s -> %s", p.RefuseNew, p.RefuseChanges, p.RefuseAll,
			p.Because.Reason, p.Because.Message, p.Because.Next)
	})
}

// TestReportOfMembers: the report says what was decided.
func TestReportOfMembers(t *testing.T) {
	m := diskspace.Members{All: 3, Answer: 1, Apart: time.Minute, Size: 30 * mib, Used: 20 * mib, Quota: 1000 * mib}
	p := diskspace.DecideMembers(m)
	want := diskspace.Report{
		Used: 20 * mib, Size: 30 * mib, Limit: 800 * mib, Refuses: true, Reason: "StoreWithoutQuorum",
		Message: p.Because.Message, Next: volume.ControlPlane(),
		Members: &diskspace.MembersReport{All: 3, Answer: 1, Prefix: "/volplane/here"},
	}
	if diff := cmp.Diff(want, diskspace.ReportOfMembers(m, p, "/volplane/here")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
