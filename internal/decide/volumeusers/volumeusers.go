package volumeusers

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// tryGrace is how long the next attempt after a failed one may take.
const tryGrace = 2 * time.Minute

// Limit is the greatest number of users of one volume, so that they fit into an annotation.
const Limit = 1000

// Reference says how often an engine has mounted a volume under one id without unmounting it. Docker mounts again
// under the id of a container that runs, to copy a file, and so an id is counted.
type Reference struct {
	// Count is 0 for an attempt that has not succeeded, and for a volume that is in use without a counted user.
	Count int `json:"n"`
	// At is the time of the newest call.
	At time.Time `json:"at"`
}

// References are the users of one volume by id.
type References map[string]Reference

// Parse reads an annotation. An unreadable one is an error, because the users of the volume are then unknown.
func Parse(text string) (References, error) {
	refs := References{}
	if text == "" {
		return refs, nil
	}
	if err := json.Unmarshal([]byte(text), &refs); err != nil || refs == nil {
		return nil, fmt.Errorf("the counts of users %.100q are unreadable: %w", text, err)
	}
	return refs, nil
}

// String is the annotation that Parse reads.
func (r References) String() string {
	text, _ := json.Marshal(map[string]Reference(r))
	return string(text)
}

// Used says whether an engine counts a user.
func (r References) Used() bool {
	for _, one := range r {
		if one.Count > 0 {
			return true
		}
	}
	return false
}

// Counted names the users that an engine counts, a few of many.
func (r References) Counted() string {
	const few = 3
	counted := maps.Clone(r)
	maps.DeleteFunc(counted, func(_ string, one Reference) bool { return one.Count == 0 })
	names := short(slices.Sorted(maps.Keys(counted)))
	if more := len(names) - few; more > 0 {
		names = append(names[:few], fmt.Sprint(more, " more"))
	}
	return strings.Join(names, ", ")
}

func (r References) with(id string, count int, now time.Time) References {
	out := maps.Clone(r)
	out[id] = Reference{Count: max(count, 0), At: now.UTC().Truncate(time.Second)}
	return out
}

// Take adds a user.
func (r References) Take(id string, now time.Time) (References, error) {
	if _, known := r[id]; !known && len(r) >= Limit {
		return nil, fmt.Errorf("%d containers already use it, which is the maximum", len(r))
	}
	return r.with(id, r[id].Count+1, now), nil
}

// Fail undoes Take for a mount that was not ready in time. The volume stays wanted for a while, and the next attempt
// finds it mounted: podman waits for five seconds only.
func (r References) Fail(id string, now time.Time) References { return r.with(id, r[id].Count-1, now) }

// Release removes a user; an unknown one is ignored.
func (r References) Release(id string, now time.Time) References {
	one, known := r[id]
	switch {
	case !known:
		return r
	case one.Count > 1:
		return r.with(id, one.Count-1, now)
	}
	out := maps.Clone(r)
	delete(out, id)
	return out
}

// Held says whether a volume is mounted for anything but the node agent.
type Held string

// Values of Held.
const (
	Yes     Held = "held"
	No      Held = "free"
	Unknown Held = "unknown"
)

// Facts are what is known of one volume.
type Facts struct {
	// References are those that count after the call.
	References References
	Held       Held
	Now        time.Time
	// Grace is how long an engine that counts a user may have nothing mounted: it mounts all volumes of a container before
	// it starts it, and copies an image's files into a new volume without a separate mount.
	Grace time.Duration
}

// Plan is what becomes of a volume.
type Plan struct {
	// References are the remaining ones. Without any, the Pod is deleted and the volume unmounted.
	References References
	// Because says why, and is empty if everything stays.
	Because string
}

// Asks says whether a decision depends on Held, which is expensive to determine.
func (f Facts) Asks() bool { return len(f.References) == 0 || len(f.stale()) > 0 }

// unnamed is the id of a user that only the kernel knows.
const unnamed = "unnamed"

// Decide says which users are left. Counts are hints: an engine that is killed never unmounts for the containers that
// died with it, and one that could not reach volplane counts differently. So an old reference to a volume without any
// other mount is dropped, and a volume that is still mounted for a user is kept, whatever the counts say.
func Decide(f Facts) Plan {
	stale := f.stale()
	switch {
	case len(f.References) == 0 && f.Held == Yes:
		return Plan{
			References: References{}.with(unnamed, 0, f.Now),
			Because:    "no container is counted, but the volume is mounted",
		}
	case len(f.References) == 0 && f.Held == Unknown:
		return Plan{
			References: References{}.with(unnamed, 0, f.Now),
			Because:    "no container is counted, but it is not known who has the volume mounted",
		}
	case len(f.References) == 0:
		return Plan{Because: "no container uses it any longer"}
	case len(stale) == 0 || f.Held != No:
		return Plan{References: f.References}
	}
	kept := maps.Clone(f.References)
	for _, id := range stale {
		delete(kept, id)
	}
	return Plan{References: kept, Because: "the engine has not unmounted it for " + strings.Join(short(stale), ", ") +
		", but nothing has it mounted"}
}

// stale returns the ids that are older than the grace. A time equally far in the future is as old: the clock was set
// back.
func (f Facts) stale() []string {
	var out []string
	for id, one := range f.References {
		grace := f.Grace
		if one.Count == 0 {
			grace = min(grace, tryGrace)
		}
		if age := f.Now.Sub(one.At); age.Abs() > grace {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// short cuts ids as docker shows those of containers.
func short(ids []string) []string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		out = append(out, fmt.Sprintf("%.12s", id))
	}
	return out
}
