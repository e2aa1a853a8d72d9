package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/testkit/golden"
)

const short = 15 * time.Second

// TestAcquireAndKeep: what a process does about a lease that it does not hold, and about one that it held when the
// lease changed.
func TestAcquireAndKeep(t *testing.T) {
	golden.Play(t, "testdata/leases.txt", func(t *testing.T, given string) string {
		f := Facts{Me: "me"}
		golden.Read(t, &f, strings.Fields(given))
		acquire := text(Next(f))
		f.Held = true
		return "acquire: " + acquire + "\nkeep: " + text(Next(f))
	})
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

// TestMark: a holder reads its own mark.
func TestMark(t *testing.T) {
	if first := With(Mark("first", "other_1"), "other_1"); first != "first" {
		t.Errorf("it works with lease %q", first)
	}
}

// TestBeside: who may start beside leases elsewhere, which pod-0 holds for 15 seconds if nothing else is said.
func TestBeside(t *testing.T) {
	golden.Play(t, "testdata/beside.txt", func(t *testing.T, given string) string {
		var all []Elsewhere
		for line := range strings.Lines(given) {
			l := Elsewhere{Namespace: "ns", Name: "l", Holder: "pod-0", Duration: short}
			golden.Read(t, &l, strings.Fields(line)[1:])
			all = append(all, l)
		}
		switch start := Beside(all); {
		case start.Refuse != "":
			return "refuse: " + start.Refuse
		case start.Wait > 0:
			return fmt.Sprintf("wait %v for %s", start.Wait, start.For)
		default:
			return "start"
		}
	})
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
		{150 * time.Second, 140 * time.Second, 5 * time.Second},
		{LongDuration, 110 * time.Second, 5 * time.Second},
		{time.Minute, 30 * time.Second, 5 * time.Second},
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
