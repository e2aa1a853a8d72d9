package since

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"volplane.dev/volplane/internal/decide/retry"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
)

// Tries are the tries of something that fails and is repeated. Zero fields are not known.
type Tries struct {
	// Attempt counts the failures in a row.
	Attempt int
	// Reported counts how often a failure was reported by a program that does not count its attempts.
	Reported int
	// Last is when the newest failure was reported.
	Last time.Time
	// Next is when the next try begins at the latest.
	Next time.Time
	// within is the longest pause between two tries.
	within time.Duration
}

// triesOf returns the attempts that warnings, oldest first, report: the newest of those with the object that is the
// link's cause, or else the newest of all.
func triesOf(told []*corev1.Event, l chain.Link) Tries {
	if len(told) == 0 {
		return Tries{}
	}
	e := told[len(told)-1]
	for _, same := range slices.Backward(told) {
		if state.CauseOf(same).Object == l.Because.Object {
			e = same
			break
		}
	}
	try := retry.TryOf(e.Annotations)
	out := Tries{
		Attempt: try.Number, Reported: int(e.Count), Last: e.LastTimestamp.Time, Next: try.Next, within: try.Within,
	}
	if e.Series != nil {
		out.Last, out.Reported = e.Series.LastObservedTime.Time, int(e.Series.Count)
	}
	if out.Attempt > 0 || out.Reported < 2 {
		out.Reported = 0
	}
	if out.Attempt == 0 && out.Reported == 0 {
		out.Last = time.Time{} // it is when the event was first seen
	}
	return out
}

// failedAt adds the time of the last failure that an object has in a field: it is written each time, the
// event is not.
func (t Tries) failedAt(at time.Time) Tries {
	out := Tries{Last: at, within: t.within}
	if t.within > 0 {
		out.Next = at.Add(t.within)
	}
	return out
}

// Text returns the time of a link as one line for people; "" when nothing is known. now is when the
// objects were read; without it there are no ages.
func (t Time) Text(now time.Time) string {
	var parts []string
	if !t.Since.IsZero() {
		parts = append(parts, "since "+moment(t.Since, now))
	}
	switch last := moment(t.Last, now); {
	case t.Attempt > 0:
		parts = append(parts, fmt.Sprintf("attempt %d failed at %s", t.Attempt, last))
	case t.Reported > 0:
		parts = append(parts, fmt.Sprintf("reported %d times, last at %s", t.Reported, last))
	case !t.Last.IsZero():
		parts = append(parts, "failed last at "+last)
	}
	switch {
	case t.Next.IsZero():
	case !now.IsZero() && t.Next.Before(now):
		parts = append(parts, "the next try was due at "+chain.Moment(t.Next))
	default:
		parts = append(parts, "the next try begins by "+chain.Moment(t.Next))
	}
	return strings.Join(parts, "; ")
}

func moment(at, now time.Time) string {
	if now.IsZero() || now.Before(at) {
		return chain.Moment(at)
	}
	return chain.Moment(at) + " (" + duration.HumanDuration(now.Sub(at)) + " ago)"
}
