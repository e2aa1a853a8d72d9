package diskspace_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const mib, gib = 1 << 20, 1 << 30

// facts are those of an ordinary day.
func facts() diskspace.Facts {
	return diskspace.Facts{
		Size: 30 * mib, Used: 20 * mib, Quota: 1000 * mib, Total: 100 * gib, Free: 50 * gib, Reserve: 160 * mib,
		Compacted: time.Hour, Defragmented: time.Hour,
	}
}

// TestDecide plays a table of what differs from an ordinary day.
func TestDecide(t *testing.T) {
	golden.Play(t, "testdata/plans.txt", func(t *testing.T, given string) string {
		f := facts()
		golden.Read(t, &f, strings.Fields(given))
		p := diskspace.Decide(f)
		return fmt.Sprintf("compact=%v defragment=%v disarm=%v reserve=%s refuse new=%v changes=%v\n%s: %s -> %s",
			p.Compact, p.Defragment, p.Disarm, diskspace.Text(p.Reserve), p.RefuseNew, p.RefuseChanges, p.Because.Reason,
			p.Because.Message, p.Because.Next)
	})
}

// TestAlways holds what no size may break.
func TestAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(0, 20*gib)
		f := diskspace.Facts{
			Used: size.Draw(t, "used"), Total: rapid.Int64Range(64*mib, 10000*gib).Draw(t, "total"),
			Alarm:   rapid.Bool().Draw(t, "alarm"),
			Reserve: rapid.Int64Range(0, 160*mib).Draw(t, "reserve"), Compacted: time.Hour, Defragmented: time.Hour,
		}
		f.Size = f.Used + size.Draw(t, "waste")
		f.Free = rapid.Int64Range(0, f.Total).Draw(t, "free")
		f.Quota = diskspace.Quota(f.Total, rapid.Int64Range(0, f.Size).Draw(t, "size at the start"))
		p := diskspace.Decide(f)
		for broken, is := range map[string]bool{
			"the quota leaves no room to delete":           diskspace.Quota(f.Total, f.Size) < f.Size+256*mib,
			"the reserve itself fills the disk":            p.Reserve > f.Reserve && f.Free-(p.Reserve-f.Reserve) < 64*mib,
			"there is no room for the copy":                p.Defragment && f.Free < f.Used,
			"changes are refused before new objects":       p.RefuseChanges && !p.RefuseNew,
			"who is refused is not told what to do":        p.RefuseNew == p.Because.Next.IsZero(),
			"what is over its quota is not even compacted": f.Size >= f.Quota && !p.Compact,
		} {
			if is {
				t.Error(broken)
			}
		}
	})
}

func TestQuota(t *testing.T) {
	for _, c := range []struct{ total, size, want int64 }{
		{1 * gib, 0, 256 * mib},
		{20 * gib, 0, 2 * gib},
		{1000 * gib, 0, 8 * gib},
		{20 * gib, 2 * gib, 2*gib + 256*mib},
		{20 * gib, 9 * gib, 9*gib + 256*mib},
	} {
		if got := diskspace.Quota(c.total, c.size); got != c.want {
			t.Errorf("disk %d, database %d: %d, want %d", c.total, c.size, got, c.want)
		}
	}
	for total, want := range map[int64]int64{
		1 * gib: 64 * mib, 10 * gib: 10 * gib / 50, 1000 * gib: gib, 64 * mib: 16 * mib,
	} {
		if got := diskspace.Kept(total); got != want {
			t.Errorf("kept of %d: %d, want %d", total, got, want)
		}
	}
}

func TestText(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 MiB", gib - 1: "1023 MiB", gib: "1.0 GiB", gib + gib/2: "1.5 GiB", 10*gib - mib: "10.0 GiB", 10 * gib: "10 GiB",
		11*gib - 1: "10 GiB",
	} {
		if got := diskspace.Text(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestReport: what is told is what was decided about.
func TestReport(t *testing.T) {
	f := facts()
	f.Size, f.Used = 850*mib, 810*mib
	p := diskspace.Decide(f)
	want := diskspace.Report{
		Used: 810 * mib, Size: 850 * mib, Limit: 800 * mib, Free: 50 * gib, Total: 100 * gib, Reserve: 160 * mib,
		Refuses: true, Reason: "DatabaseFull", Message: p.Because.Message, Next: volume.User(),
	}
	if diff := cmp.Diff(want, diskspace.ReportOf(f, p)); diff != "" || want.Message == "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
