package mount

import (
	"fmt"
	"strings"

	"volplane.dev/volplane/internal/volume"
)

// Loss is how a Pod has lost a mount.
type Loss string

// Losses: the server of the mounted filesystem has died, or a user has unmounted it.
const (
	Died   Loss = "died"
	Undone Loss = "unmounted"
)

// says continues a sentence about the mount.
func (l Loss) says() string {
	if l == Died {
		return "is dead, because its server is gone"
	}
	return "is gone, because another program has unmounted it"
}

// Lost returns how Pods that want the volume have lost it, by the paths of their targets: the volume was mounted, and a
// Pod may be running without it. A loss ends when the Pod has the volume again, not when a step that should restore it
// fails.
func (f Facts) Lost() map[string]Loss {
	if f.Record == nil {
		return nil
	}
	var out map[string]Loss
	for _, c := range f.Wanted {
		if l := f.lossOf(c); l != "" {
			if out == nil {
				out = map[string]Loss{}
			}
			out[c.Path] = l
		}
	}
	return out
}

func (f Facts) lossOf(c Consumer) Loss {
	t := f.Record.Target(c.Path)
	published := f.Verify && t != nil && t.Phase == Published
	bound := published && t.HostPhase == Bound
	switch {
	case f.ended(c):
		return ""
	case published && f.Dead[c.Path], bound && f.Dead[t.HostPath]:
		return Died
	case published && !f.Mounted[c.Path], bound && !f.Mounted[t.HostPath]:
		return Undone
	case t.Serves(c.HostPath):
		return ""
	}
	return f.Record.Lost[c.Path]
}

// Regain forgets the losses of Pods that have the volume again.
func (r *Record) Regain(wanted []Consumer) {
	if r == nil {
		return
	}
	for _, c := range wanted {
		if r.Target(c.Path).Serves(c.HostPath) {
			delete(r.Lost, c.Path)
		}
	}
}

// NotBack returns the reason why a step does not bring back a volume that Pods have lost. cause is why the step is not
// done; it stays the reason if no Pod that had the volume waits for the step.
func (f Facts) NotBack(a Action, cause volume.Because) volume.Because {
	if cause.Reason == "" || a.Verb == Expand {
		return cause
	}
	lost := f.Lost()
	for _, c := range f.Wanted {
		if l := lost[c.Path]; l != "" && (a.Path == "" || a.Path == c.Path) {
			return f.notBack(l, cause)
		}
	}
	return cause
}

func (f Facts) notBack(l Loss, cause volume.Because) volume.Because {
	b := volume.Sayf(volume.ReasonMountBroken, cause.Next,
		"the mount of volume %s on node %s %s; the mount is not back: %s", f.Volume, f.Node, l.says(), cause.Message)
	b.Cause = cause.Cause
	return b
}

// Holder is a process that keeps a mount in use; without a PID it is the kernel, and Use says why.
type Holder struct {
	PID int
	// Command is the name of its program, and Use how the process uses the mount.
	Command, Use string
	// Namespace is its mount namespace, empty when that is the node agent's.
	Namespace string
}

// InUse adds the users of a mount to the reason of a failed unmount. They act next if otherwise only the node would,
// which retries.
func InUse(b volume.Because, node string, holders []Holder) volume.Because {
	if len(holders) == 0 {
		return b
	}
	var named []string
	for _, h := range holders {
		text := fmt.Sprintf("%.200s", h.Use)
		if h.PID != 0 {
			text = fmt.Sprintf("process %d (%.32s): %s", h.PID, h.Command, h.Use)
		}
		if h.Namespace != "" {
			text += " in mount namespace " + h.Namespace
		}
		named = append(named, text)
	}
	b.Message = fmt.Sprintf("%.500s; in use by %s", b.Message, strings.Join(named, ", "))
	if b.Next == volume.NodeAgent(node) {
		b.Next = volume.MountUser(node)
	}
	return b
}
