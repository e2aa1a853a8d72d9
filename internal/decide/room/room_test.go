package room_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/decide/room"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const mib, gib = 1 << 20, 1 << 30

// facts are those of an ordinary day, with a change.
func facts(change func(*room.Facts)) room.Facts {
	f := room.Facts{
		Size: 30 * mib, Used: 20 * mib, Quota: 1000 * mib, Total: 100 * gib, Free: 50 * gib, Reserve: 160 * mib,
		Compacted: time.Hour, Defragmented: time.Hour,
	}
	change(&f)
	return f
}

func TestDecide(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct {
		argues string
		change func(*room.Facts)
	}{
		{"an ordinary day", func(*room.Facts) {}},
		{"most of the file is unused", func(f *room.Facts) { f.Size = 200 * mib }},
		{"once in a while", func(f *room.Facts) { f.Size, f.Defragmented = 200*mib, time.Minute }},
		{"not without room for the copy", func(f *room.Facts) { f.Size, f.Free = 200*mib, 30*mib }},
		{"little waste does not pay", func(f *room.Facts) { f.Size, f.Used = 200*mib, 150*mib }},
		{"the file is near the quota, what it holds is not", func(f *room.Facts) { f.Size, f.Used = 810*mib, 700*mib }},
		{"what it holds is near the quota", func(f *room.Facts) { f.Size, f.Used = 850*mib, 810*mib }},
		{"nearer", func(f *room.Facts) { f.Size, f.Used, f.Compacted = 950*mib, 910*mib, time.Second }},
		{"etcd refuses writes", func(f *room.Facts) { f.Size, f.Used, f.Alarm = 1000*mib, 990*mib, true }},
		{"a little was deleted", func(f *room.Facts) { f.Size, f.Used, f.Alarm = 1000*mib, 970*mib, true }},
		{"and given back", func(f *room.Facts) { f.Size, f.Used, f.Alarm = 971*mib, 970*mib, true }},
		{"etcd refuses writes, and most was deleted", func(f *room.Facts) {
			f.Size, f.Used, f.Alarm, f.Defragmented = 1000*mib, 300*mib, true, time.Minute
		}},
		{"that was given back", func(f *room.Facts) { f.Size, f.Used, f.Alarm = 310*mib, 300*mib, true }},
		{"in good time what objects were before is forgotten", func(f *room.Facts) {
			f.Size, f.Used, f.Compacted = 810*mib, 700*mib, 29*time.Second
		}},
		{"which is now", func(f *room.Facts) { f.Size, f.Used, f.Compacted = 810*mib, 700*mib, 30*time.Second }},
		{"as near to the quota as may be", func(f *room.Facts) { f.Size, f.Used = 800*mib, 800*mib }},
		{"somebody waits for what is forgotten", func(f *room.Facts) {
			f.Size, f.Used, f.Compacted = 810*mib, 801*mib, 3*time.Second
		}},
		{"also when etcd refuses writes for what was deleted", func(f *room.Facts) {
			f.Size, f.Used, f.Alarm, f.Compacted = 310*mib, 300*mib, true, 3*time.Second
		}},
		{"what may still be changed", func(f *room.Facts) { f.Size, f.Used = 900*mib, 900*mib }},
		{"as much waste as does not pay", func(f *room.Facts) { f.Size = 84 * mib }},
		{"a byte more", func(f *room.Facts) { f.Size = 84*mib + 1 }},
		{"the first moment that it may be written anew", func(f *room.Facts) {
			f.Size, f.Defragmented = 200*mib, 10*time.Minute
		}},
		{"as much room as is not enough for the copy", func(f *room.Facts) { f.Size, f.Free = 200*mib, 36*mib }},
		{"a byte more of room", func(f *room.Facts) { f.Size, f.Free = 200*mib, 36*mib+1 }},
		{"so little was given back that writes stay refused", func(f *room.Facts) {
			f.Size, f.Used, f.Alarm = 980*mib, 970*mib, true
		}},
		{"as little room as there may be", func(f *room.Facts) { f.Free = 16 * mib }},
		{"a byte less", func(f *room.Facts) { f.Free = 16*mib - 1 }},
		{"both are full: the disk is told, with which all is lost", func(f *room.Facts) {
			f.Size, f.Used, f.Free = 950*mib, 910*mib, 10*mib
		}},
		{"the least room that is not enough to take the reserve back", func(f *room.Facts) {
			f.Free, f.Reserve = 80*mib, 144*mib
		}},
		{"only the database is, and there is as little room as there may be", func(f *room.Facts) {
			f.Size, f.Used, f.Free = 950*mib, 910*mib, 16*mib
		}},
		{"a reserve that is too large stays so", func(f *room.Facts) { f.Reserve = 200 * mib }},
		{"the disk is full", func(f *room.Facts) { f.Free = 10 * mib }},
		{"what a start needs stays", func(f *room.Facts) { f.Free, f.Reserve = 0, 144*mib }},
		{"also if it is less already", func(f *room.Facts) { f.Free, f.Reserve = 0, 10*mib }},
		{"some room is not enough to take it back", func(f *room.Facts) { f.Free, f.Reserve = 70*mib, 144*mib }},
		{"more is", func(f *room.Facts) { f.Free, f.Reserve = 90*mib, 144*mib }},
		{"a small disk has a small reserve", func(f *room.Facts) { f.Total, f.Free, f.Reserve = 800*mib, 400*mib, 0 }},
	} {
		f := facts(c.change)
		p := room.Decide(f)
		fmt.Fprintf(&out, "# %s\nsize=%s used=%s quota=%s alarm=%v free=%s/%s reserve=%s compacted=%s "+
			"defragmented=%s\n----\n", c.argues,
			room.Text(f.Size), room.Text(f.Used), room.Text(f.Quota), f.Alarm, room.Text(f.Free), room.Text(f.Total),
			room.Text(f.Reserve), f.Compacted, f.Defragmented)
		fmt.Fprintf(&out, "compact=%v defragment=%v disarm=%v reserve=%s refuse new=%v changes=%v\n%s: %s -> %s\n\n",
			p.Compact, p.Defragment, p.Disarm, room.Text(p.Reserve), p.RefuseNew, p.RefuseChanges, p.Because.Reason,
			p.Because.Message, p.Because.Next)
	}
	golden.Equal(t, "testdata/plans.txt", out.String())
}

// TestAlways holds what no size may break.
func TestAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(0, 20*gib)
		f := room.Facts{
			Used: size.Draw(t, "used"), Total: rapid.Int64Range(64*mib, 10000*gib).Draw(t, "total"),
			Alarm:   rapid.Bool().Draw(t, "alarm"),
			Reserve: rapid.Int64Range(0, 160*mib).Draw(t, "reserve"), Compacted: time.Hour, Defragmented: time.Hour,
		}
		f.Size = f.Used + size.Draw(t, "waste")
		f.Free = rapid.Int64Range(0, f.Total).Draw(t, "free")
		f.Quota = room.Quota(f.Total, rapid.Int64Range(0, f.Size).Draw(t, "size at the start"))
		p := room.Decide(f)
		for broken, is := range map[string]bool{
			"the quota leaves no room to delete":           room.Quota(f.Total, f.Size) < f.Size+256*mib,
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
		if got := room.Quota(c.total, c.size); got != c.want {
			t.Errorf("disk %d, database %d: %d, want %d", c.total, c.size, got, c.want)
		}
	}
	for total, want := range map[int64]int64{
		1 * gib: 64 * mib, 10 * gib: 10 * gib / 50, 1000 * gib: gib, 64 * mib: 16 * mib,
	} {
		if got := room.Kept(total); got != want {
			t.Errorf("kept of %d: %d, want %d", total, got, want)
		}
	}
}

func TestText(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 MiB", gib - 1: "1023 MiB", gib: "1.0 GiB", gib + gib/2: "1.5 GiB", 10*gib - mib: "10.0 GiB", 10 * gib: "10 GiB",
		11*gib - 1: "10 GiB",
	} {
		if got := room.Text(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestReport: what is told is what was decided about.
func TestReport(t *testing.T) {
	f := facts(func(f *room.Facts) { f.Size, f.Used = 850*mib, 810*mib })
	p := room.Decide(f)
	want := room.Report{
		Used: 810 * mib, Size: 850 * mib, Limit: 800 * mib, Free: 50 * gib, Total: 100 * gib, Reserve: 160 * mib,
		Refuses: true, Reason: "DatabaseFull", Message: p.Because.Message, Next: volume.User(),
	}
	if diff := cmp.Diff(want, room.ReportOf(f, p)); diff != "" || want.Message == "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
