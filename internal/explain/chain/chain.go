package chain

import (
	"slices"
	"strings"

	"volplane.dev/volplane/internal/volume"
)

// State says whether a link of the chain holds.
type State string

// The states of a link.
const (
	// OK means that the link holds.
	OK State = "ok"
	// Waiting means that an actor is expected to act, and may do so without help.
	Waiting State = "waiting"
	// Problem means that it will not be resolved unless a cause is removed.
	Problem State = "problem"
)

// Link is one object of a chain, with its state.
type Link struct {
	// Subject is the object that the link is about, "type/name", or the type alone if there is no object yet.
	Subject string
	State   State
	Because volume.Because
}

// Chain is the explanation of one object.
type Chain struct {
	// Subject is the explained object, "type/name".
	Subject string
	// Links are in the order from the claim to the mount. There is at least one.
	Links []Link
}

// Answer returns the link that explains the state of the subject: the first one with a problem,
// because earlier links may only wait for it; else the first one that waits, or the attachment below it that it waits
// for; else the last one.
func (c Chain) Answer() Link {
	for _, s := range []State{Problem, Waiting} {
		if i := slices.IndexFunc(c.Links, func(l Link) bool { return l.State == s }); i >= 0 {
			return c.detaching(i)
		}
	}
	return c.Links[len(c.Links)-1]
}

// detaching returns a link, or the one of the attachment whose end it waits for.
func (c Chain) detaching(i int) Link {
	l := c.Links[i]
	if l.State == Waiting && l.Because.Next == volume.Controller("attachdetach") {
		for _, below := range c.Links[i+1:] {
			if below.State == Waiting && strings.HasPrefix(below.Subject, "attachment/") {
				return below
			}
		}
	}
	return l
}

// Under returns the chain with another subject.
func (c Chain) Under(subject string) Chain { return Chain{Subject: subject, Links: c.Links} }

// Healthy says whether all links hold.
func (c Chain) Healthy() bool { return c.Answer().State == OK }

// New returns a link.
func New(subject string, s State, r volume.Reason, message string, next volume.Actor) Link {
	return Link{Subject: subject, State: s, Because: volume.Say(r, next, message)}
}

// Broken returns a link that does not hold because of something.
func Broken(subject string, b volume.Because) Link {
	return Link{Subject: subject, State: Problem, Because: b}
}

// FromCondition returns a link with the condition that a decision returned.
func FromCondition(subject string, t volume.Condition) Link {
	state := Waiting
	switch {
	case t.Stuck:
		state = Problem
	case t.Next.IsZero():
		state = OK
	}
	return Link{Subject: subject, State: state, Because: t.Because}
}
