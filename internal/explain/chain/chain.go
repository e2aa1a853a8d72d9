package chain

import (
	"slices"

	"volplane.dev/volplane/internal/volume"
)

// State says whether a link of the chain holds.
type State string

// The states of a link.
const (
	// OK means that the link holds.
	OK State = "ok"
	// Waiting means that somebody is expected to act, and may do so by itself.
	Waiting State = "waiting"
	// Problem means that it will not get better without a cause being removed.
	Problem State = "problem"
)

// Link is one step of the chain.
type Link struct {
	// Subject is the object that the link is about, "type/name".
	Subject string
	State   State
	Because volume.Because
}

// Chain is the explanation of one object.
type Chain struct {
	// Subject is what was asked about, "type/name".
	Subject string
	// Links go from the claim to the mount; there is at least one.
	Links []Link
}

// Answer returns the link to look at: the first one with a problem, for what only
// waits for it may stand before it; else the first that waits; else the last.
func (c Chain) Answer() Link {
	for _, s := range []State{Problem, Waiting} {
		if i := slices.IndexFunc(c.Links, func(l Link) bool { return l.State == s }); i >= 0 {
			return c.Links[i]
		}
	}
	return c.Links[len(c.Links)-1]
}

// Under returns the chain as that of another subject.
func (c Chain) Under(subject string) Chain { return Chain{Subject: subject, Links: c.Links} }

// Healthy says whether all links hold.
func (c Chain) Healthy() bool { return c.Answer().State == OK }

// New returns a link.
func New(subject string, s State, r volume.Reason, message, next string) Link {
	return Link{Subject: subject, State: s, Because: volume.Because{Reason: r, Message: message, Next: next}}
}

// Tell returns the link of what a decision says.
func Tell(subject string, t volume.Condition) Link {
	state := Waiting
	switch {
	case t.Stuck:
		state = Problem
	case t.Next == "":
		state = OK
	}
	return Link{Subject: subject, State: state, Because: t.Because}
}
