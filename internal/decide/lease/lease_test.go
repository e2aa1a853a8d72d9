package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/testkit/golden"
)

const (
	short = 15 * time.Second
	mark  = "first/other_1"
)

func facts() []struct {
	argues string
	Facts
} {
	return []struct {
		argues string
		Facts
	}{
		{"there is no lease", Facts{}},
		{"it was given back", Facts{Duration: time.Second}},
		{"another one renews it", Facts{Holder: "other_1", Duration: short, Unchanged: 5 * time.Second}},
		{"another one has not renewed it for almost its duration", Facts{
			Holder: "other_1", Duration: short, Unchanged: short - 1,
		}},
		{"another one has not renewed it for its duration", Facts{Holder: "other_1", Duration: short, Unchanged: short}},
		{"the duration is missing", Facts{Holder: "other_1"}},
		{"its holder works only with a lease that this process holds", Facts{
			Holder: "other_1", Duration: LongDuration, Mark: mark, Holds: "first",
		}},
		{"its holder works only with a lease that this process does not hold", Facts{
			Holder: "other_1", Duration: LongDuration, Mark: mark,
		}},
		{"its holder works only with another lease than this process holds", Facts{
			Holder: "other_1", Duration: LongDuration, Mark: mark, Holds: "second",
		}},
		{"the mark is that of an earlier holder", Facts{
			Holder: "pod-0", Duration: short, Mark: mark, Holds: "first",
		}},
		{"the holder's name is only the beginning of that in the mark", Facts{
			Holder: "other", Duration: short, Mark: mark, Holds: "first",
		}},
		{"the mark is garbage", Facts{Holder: "other_1", Duration: short, Mark: "first", Holds: "first"}},
		{"this process has held it before", Facts{Holder: "me", Duration: short, Unchanged: time.Second}},
	}
}

// TestAcquireAndKeep: what a process does about a lease that it does not hold, and about one that it held when the
// lease changed.
func TestAcquireAndKeep(t *testing.T) {
	var out strings.Builder
	for _, f := range facts() {
		f.Me = "me"
		acquire := text(Next(f.Facts))
		f.Held = true
		fmt.Fprintf(&out, "# %s\nacquire: %s\nkeep: %s\n\n", f.argues, acquire, text(Next(f.Facts)))
	}
	golden.Equal(t, "testdata/leases.txt", out.String())
}

func text(p Plan) string {
	if p.Take {
		return "take it, because " + p.Because
	}
	if p.Wait == 0 {
		return "leave it, because " + p.Because
	}
	return fmt.Sprintf("leave it for %v, because %s", p.Wait, p.Because)
}

// TestBeside: who may start beside leases elsewhere.
func TestBeside(t *testing.T) {
	there := Elsewhere{Namespace: "ns", Name: "l", Holder: "pod-0", Duration: short}
	with := func(change func(*Elsewhere)) Elsewhere {
		l := there
		change(&l)
		return l
	}
	renewed := with(func(l *Elsewhere) { l.Renewed = true })
	expired := with(func(l *Elsewhere) { l.Unchanged = short })
	long := with(func(l *Elsewhere) { l.Name, l.Duration = "long", time.Hour })
	var out strings.Builder
	for _, row := range []struct {
		argues string
		all    []Elsewhere
	}{
		{"nobody holds any", nil},
		{"it was given back", []Elsewhere{with(func(l *Elsewhere) { l.Holder = "" })}},
		{"it was given back a moment ago", []Elsewhere{with(func(l *Elsewhere) { l.Holder, l.Renewed = "", true })}},
		{"it was seen once", []Elsewhere{there}},
		{"its holder lives", []Elsewhere{renewed}},
		{"its holder is dead", []Elsewhere{expired}},
		{"the holder of one of two lives", []Elsewhere{expired, renewed}},
		{"one of two is known to be dead", []Elsewhere{expired, with(func(l *Elsewhere) { l.Unchanged = short / 3 })}},
		{"the last that expires counts", []Elsewhere{
			there, with(func(l *Elsewhere) { l.Name, l.Duration = "later", 2*short }), there,
		}},
		{"it lasts longer than anybody waits", []Elsewhere{long}},
		{"it still may be held after that", []Elsewhere{with(func(l *Elsewhere) {
			l.Duration, l.Unchanged = time.Hour, LongDuration
		})}},
		{"a long one that expires as soon as it is known", []Elsewhere{with(func(l *Elsewhere) {
			l.Duration, l.Unchanged = LongDuration, LongDuration
		})}},
	} {
		fmt.Fprintf(&out, "# %s\n", row.argues)
		switch start := Beside(row.all); {
		case start.Refuse != "":
			fmt.Fprintf(&out, "refuse: %s\n\n", start.Refuse)
		case start.Wait > 0:
			fmt.Fprintf(&out, "wait %v for %s\n\n", start.Wait, start.For)
		default:
			fmt.Fprint(&out, "start\n\n")
		}
	}
	golden.Equal(t, "testdata/beside.txt", out.String())
}

// TestTimes: a lease is renewed between its retry period and its deadline, and the deadline comes before others may
// take it.
func TestTimes(t *testing.T) {
	var out strings.Builder
	for _, given := range [][3]time.Duration{
		{short, 10 * time.Second, 5 * time.Second},
		{137 * time.Second, 107 * time.Second, 26 * time.Second},
		{time.Minute, 20 * time.Second, 2 * time.Second},
		{100 * time.Second, 99 * time.Second, time.Second},
		{8 * time.Second, 6 * time.Second, 500 * time.Millisecond},
		{short, short, 5 * time.Second},
		{10900 * time.Millisecond, 10500 * time.Millisecond, 5 * time.Second},
		{short, 6 * time.Second, 5 * time.Second},
		{short, 10 * time.Second, 0},
		{500 * time.Millisecond, 400 * time.Millisecond, 100 * time.Millisecond},
	} {
		first, err := First(given[0], given[1], given[2])
		fmt.Fprintf(&out, "# lease duration, renew deadline and retry period: %v\n", given)
		if err != nil {
			fmt.Fprintf(&out, "error: %v\n\n", err)
			continue
		}
		fmt.Fprintf(&out, "first: %+v\nother: %+v\nattempts to renew:%s\n\n", first, Other(first), attempts(first))
	}
	golden.Equal(t, "testdata/times.txt", out.String())
}

// attempts returns when a holder tries to renew a lease and when it gives each attempt up, if none is answered.
func attempts(t Times) string {
	var out strings.Builder
	for at := t.Renew; at < t.Deadline; {
		over := at + t.Limit(t.Deadline-at)
		fmt.Fprintf(&out, " %v-%v", at.Round(10*time.Millisecond), over.Round(10*time.Millisecond))
		at = over + t.Again(t.Deadline-over)
	}
	return out.String()
}

// TestWrites: with upstream's times, all leases that a process may hold are written at most twelve times a minute.
func TestWrites(t *testing.T) {
	first, err := First(short, 10*time.Second, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	const leases = 6
	writes := time.Minute.Seconds()/first.Renew.Seconds() + (leases-1)*time.Minute.Seconds()/Other(first).Renew.Seconds()
	if writes > 12 {
		t.Errorf("%v writes a minute", writes)
	}
}
