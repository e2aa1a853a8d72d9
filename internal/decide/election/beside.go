package election

import (
	"fmt"
	"time"
)

// Elsewhere is a lease of a driver that another process may hold, in a namespace where this process does not compete
// for it.
type Elsewhere struct {
	Namespace, Name, Holder string
	// Duration is what the lease records.
	Duration time.Duration
	// Unchanged is how long this process has seen the lease as it is.
	Unchanged time.Duration
	// Renewed says that the holder has renewed it meanwhile.
	Renewed bool
}

// Start is what a process does that has looked for others which call the driver.
type Start struct {
	// Refuse says why it must not start; empty if it may.
	Refuse string
	// Wait is how long it takes until more is known; 0 if all is.
	Wait time.Duration
	// For says what is waited for.
	For string
}

// Beside decides whether a process may call a driver beside those who hold leases elsewhere. A holder that lives renews
// its lease; one that has not done so for the recorded duration does not work. It takes this process that long to know,
// because clocks are not compared.
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
