package lease

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Facts are what a process knows of a lease that it has just read.
type Facts struct {
	// Me is the holder's name for this process, and Former that of a holder which cannot work while this process runs,
	// or "".
	Me, Former string
	// Held says that this process has held the lease until it changed without its doing.
	Held bool
	// Holder is empty if no process holds the lease, or if it does not exist.
	Holder string
	// Duration is how long others wait after the holder's last renewal, as the lease records it.
	Duration time.Duration
	// Mark is the mark of the holder, or of an earlier one.
	Mark string
	// Unchanged is how long this process has seen the lease as it is.
	Unchanged time.Duration
	// Holds is the name of this process's first lease, if it held it when this one was read.
	Holds string
}

// Plan is what a process does about a lease.
type Plan struct {
	// Take says that the process writes the lease as its holder.
	Take bool
	// Wait is how long a lease that is not taken still belongs to its holder, if it does not change.
	Wait time.Duration
	// Because says why, in a sentence.
	Because string
}

// Next decides whether a process takes a lease, or keeps one that has changed without its doing.
func Next(f Facts) Plan {
	first := With(f.Mark, f.Holder)
	switch {
	case f.Holder == "":
		return Plan{Take: true, Because: "it has no holder"}
	case f.Holder == f.Me:
		return Plan{Take: true, Because: "this process has held it before"}
	case f.Held:
		return Plan{Because: f.Holder + " holds it"}
	case f.Holder == f.Former:
		return Plan{Take: true, Because: f.Holder + " had the store to itself, in which this process works now"}
	case f.Holds != "" && first == f.Holds:
		because := fmt.Sprintf("%s works only with lease %s, which this process holds", f.Holder, first)
		return Plan{Take: true, Because: because}
	case f.Unchanged >= f.Duration:
		return Plan{Take: true, Because: fmt.Sprintf("%s has not renewed it for %v", f.Holder, f.Duration)}
	}
	because := fmt.Sprintf("%s holds it, which need not renew it for %v", f.Holder, f.Duration)
	return Plan{Wait: f.Duration - f.Unchanged, Because: because}
}

// Mark returns the text by which a lease says that its holder works only with the first lease.
func Mark(first, holder string) string { return first + "/" + holder }

// With returns the first lease of a holder; empty if the mark is not its own. A lease's name has no slash.
func With(mark, holder string) string {
	if first, of, ok := strings.Cut(mark, "/"); ok && of == holder {
		return first
	}
	return ""
}

// Elsewhere is a lease of a driver that another process may hold, in a namespace where this process does not compete
// for it.
type Elsewhere struct {
	Namespace, Name, Holder string
	// Duration is what the lease records.
	Duration time.Duration
	// Unchanged is how long this process has seen the lease as it is.
	Unchanged time.Duration
	// Renewed says that the holder has renewed it since this process saw it before.
	Renewed bool
}

// Start is the decision of a process that has looked for others which call the driver.
type Start struct {
	// Refuse says why it must not start; empty if it may.
	Refuse string
	// Wait is the time until more is known; 0 if everything is known.
	Wait time.Duration
	// For says what is waited for.
	For string
}

// Beside decides whether a process may call a driver while others elsewhere may hold its leases. A live holder renews
// its lease; one that has not done so for the recorded duration does not work. This process has to observe that for as
// long, because clocks are not compared.
func Beside(all []Elsewhere) Start {
	var start Start
	for _, l := range all {
		left := min(l.Duration, LongDuration) - l.Unchanged
		switch {
		case l.Holder == "":
		case l.Renewed:
			return refuse(l, "renews it")
		case left > 0 && left > start.Wait:
			start.Wait = left
			start.For = fmt.Sprintf("lease %s/%s, which %s holds, to be renewed or to expire", l.Namespace, l.Name, l.Holder)
		case left <= 0 && l.Duration > LongDuration:
			return refuse(l, fmt.Sprintf("need not renew it for %v", l.Duration))
		}
	}
	return start
}

func refuse(l Elsewhere, why string) Start {
	return Start{Refuse: fmt.Sprintf("%s holds lease %s in namespace %s and %s", l.Holder, l.Name, l.Namespace, why)}
}

// Times are those of one lease.
type Times struct {
	// Duration is how long other processes wait after the holder's last renewal.
	Duration time.Duration
	// Deadline is how long after its last renewal the holder works.
	Deadline time.Duration
	// Renew is how long after a renewal the next one begins.
	Renew time.Duration
	// Retry is the interval of attempts to acquire, and the longest one of attempts to renew after a failure.
	Retry time.Duration
}

// LongDuration is how long upstream's sidecars wait for all leases of a killed leader but the first. A user who
// switches back to them at such a moment waits no longer than that.
const LongDuration = 2 * time.Minute

// First returns the times of the only lease of a process, or of its first one. It is renewed at a time after the retry
// period that leaves room for a few attempts before the deadline. As with client-go, these must have an order.
func First(duration, deadline, retry time.Duration) (Times, error) {
	// A lease records whole seconds.
	duration = duration.Truncate(time.Second)
	switch {
	case retry <= 0:
		return Times{}, errors.New("the retry period of the leader election must be greater than zero")
	case deadline <= retry+retry/5:
		return Times{}, errors.New("the renew deadline of the leader election must be greater than 1.2 retry periods")
	case duration <= deadline:
		return Times{}, errors.New("the lease duration of the leader election must be greater than the renew deadline")
	case duration < time.Second:
		return Times{}, errors.New("the lease duration of the leader election must be a second or more")
	}
	return Times{Duration: duration, Deadline: deadline, Renew: retry + (deadline-retry)*2/5, Retry: retry}, nil
}

// Other returns the times of the other leases of a process with that first one. Their deadline leaves as much time for
// the end of the work as the first one's, or more.
func Other(first Times) Times {
	end := first.Duration - first.Deadline
	if LongDuration <= first.Duration || LongDuration/4 <= end {
		return first
	}
	deadline := LongDuration - max(end, LongDuration/12)
	return Times{Duration: LongDuration, Deadline: deadline, Renew: LongDuration / 4 * 3, Retry: first.Retry}
}

// Again returns how long after a failed renewal the next attempt begins, when the deadline is that far.
func (t Times) Again(left time.Duration) time.Duration {
	return min(t.Retry, max(left/4, 100*time.Millisecond))
}

// Limit returns the time limit of one request, which leaves time for another one before the deadline.
func (t Times) Limit(left time.Duration) time.Duration {
	return max(min(left, t.Deadline)/2, 100*time.Millisecond)
}
