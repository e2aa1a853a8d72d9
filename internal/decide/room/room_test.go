package room_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/decide/room"
	"volplane.dev/volplane/internal/golden"
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
		{"etcd refuses writes, and most was deleted", func(f *room.Facts) { f.Size, f.Used, f.Alarm, f.Defragmented = 1000*mib, 300*mib, true, time.Minute }},
		{"that was given back", func(f *room.Facts) { f.Size, f.Used, f.Alarm = 310*mib, 300*mib, true }},
		{"the disk is full", func(f *room.Facts) { f.Free = 10 * mib }},
		{"what a start needs stays", func(f *room.Facts) { f.Free, f.Reserve = 0, 144*mib }},
		{"also if it is less already", func(f *room.Facts) { f.Free, f.Reserve = 0, 10*mib }},
		{"some room is not enough to take it back", func(f *room.Facts) { f.Free, f.Reserve = 70*mib, 144*mib }},
		{"more is", func(f *room.Facts) { f.Free, f.Reserve = 90*mib, 144*mib }},
		{"a small disk has a small reserve", func(f *room.Facts) { f.Total, f.Free, f.Reserve = 800*mib, 400*mib, 0 }},
	} {
		f := facts(c.change)
		p := room.Decide(f)
		fmt.Fprintf(&out, "# %s\nsize=%s used=%s quota=%s alarm=%v free=%s/%s reserve=%s compacted=%s defragmented=%s\n----\n", c.argues,
			room.Text(f.Size), room.Text(f.Used), room.Text(f.Quota), f.Alarm, room.Text(f.Free), room.Text(f.Total), room.Text(f.Reserve), f.Compacted, f.Defragmented)
		fmt.Fprintf(&out, "compact=%v defragment=%v disarm=%v reserve=%s refuse new=%v changes=%v\n%s: %s -> %s\n\n",
			p.Compact, p.Defragment, p.Disarm, room.Text(p.Reserve), p.RefuseNew, p.RefuseChanges, p.Because.Reason, p.Because.Message, p.Because.Next)
	}
	golden.Equal(t, "testdata/plans.txt", out.String())
}

// TestAlways holds what no size may break.
func TestAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(0, 20*gib)
		f := room.Facts{
			Used: size.Draw(t, "used"), Total: rapid.Int64Range(64*mib, 10000*gib).Draw(t, "total"), Alarm: rapid.Bool().Draw(t, "alarm"),
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
			"who is refused is not told what to do":        p.RefuseNew == (p.Because.Next == ""),
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
	for total, want := range map[int64]int64{1 * gib: 64 * mib, 10 * gib: 10 * gib / 50, 1000 * gib: gib, 64 * mib: 16 * mib} {
		if got := room.Kept(total); got != want {
			t.Errorf("kept of %d: %d, want %d", total, got, want)
		}
	}
}
