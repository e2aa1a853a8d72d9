package election

import (
	"fmt"
	"strings"
	"time"
)

// Facts are what a process knows of a lease that it has just read.
type Facts struct {
	// Me is the holder's name for this process.
	Me string
	// Holder is empty if nobody holds the lease, or if it does not exist.
	Holder string
	// Duration is how long others wait after the holder's last renewal, as the lease records it.
	Duration time.Duration
	// Mark is what the holder, or an earlier one, has written with Mark.
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
	// Wait is how long a lease that is not taken remains another's, if it does not change.
	Wait time.Duration
	// Because says why, in a sentence.
	Because string
}

// Acquire decides whether a process takes a lease that it does not hold.
func Acquire(f Facts) Plan {
	first := With(f.Mark, f.Holder)
	switch {
	case f.Holder == "":
		return Plan{Take: true, Because: "nobody holds it"}
	case f.Holder == f.Me:
		return Plan{Take: true, Because: "this process has held it before"}
	case f.Holds != "" && first == f.Holds:
		because := fmt.Sprintf("%s works only with lease %s, which this process holds", f.Holder, first)
		return Plan{Take: true, Because: because}
	case f.Unchanged >= f.Duration:
		return Plan{Take: true, Because: fmt.Sprintf("%s has not renewed it for %v", f.Holder, f.Duration)}
	}
	because := fmt.Sprintf("%s holds it, which need not renew it for %v", f.Holder, f.Duration)
	return Plan{Wait: f.Duration - f.Unchanged, Because: because}
}

// Keep decides about a lease that a process held until it changed without its doing.
func Keep(f Facts) Plan {
	switch f.Holder {
	case "":
		return Plan{Take: true, Because: "somebody has deleted it or taken its holder away"}
	case f.Me:
		return Plan{Take: true, Because: "somebody has changed it"}
	}
	return Plan{Because: f.Holder + " holds it"}
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
