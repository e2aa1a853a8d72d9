package page

import (
	"slices"
	"strings"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/subject"
	"volplane.dev/volplane/internal/gather"
)

// glance is a sight as one page shows it. root leads from the page to where all pages begin.
type glance struct {
	*sight
	root string
}

// to returns the link of an object.
func (g glance) to(o object) ref { return ref{clean(o.subject()), g.root + o.path()} }

// named returns the link of an object whose kind is clear.
func (g glance) named(o object) ref { return ref{clean(o.name), g.root + o.path()} }

// toSubject returns the link of a subject of an explanation, or its text alone if it is nothing that exists.
func (g glance) toSubject(ns, subject string) ref {
	if o, ok := subjectOf(ns, subject); ok {
		if _, exists := g.explain(o); exists {
			return g.to(o)
		}
	}
	return ref{Text: clean(subject)}
}

// chainView is an explanation.
type chainView struct {
	Headline string
	State    chain.State
	Links    []linkView
}

// linkView is one link of the chain. Broken marks the one that is the answer.
type linkView struct {
	Subject                      ref
	State                        chain.State
	Reason, Message, Next, Since string
	Broken                       bool
}

func (g glance) chain(ns string, c chain.Chain) chainView {
	answer := c.Answer()
	v := chainView{Headline: clean(chain.Headline(c)), State: answer.State}
	marked, space := false, subject.Of(g.walk.View, ns, c).Namespace
	for _, l := range c.Links {
		broken := !marked && l == answer && l.State != chain.OK
		marked = marked || broken
		v.Links = append(v.Links, linkView{
			Subject: g.toSubject(space, l.Subject), State: l.State, Reason: clean(string(l.Because.Reason)),
			Message: sentence(l.Because.Message), Next: clean(l.Because.Next.String()), Since: g.since(ns, c, l), Broken: broken,
		})
	}
	return v
}

// sentence returns a message with its full stop.
func sentence(message string) string {
	if message = strings.TrimRight(message, ". "); message == "" {
		return ""
	}
	return clean(message) + "."
}

// explain returns the explanation of an object; false if it does not exist.
func (g glance) explain(o object) (chain.Chain, bool) {
	k, known := gather.KindNamed(o.kind)
	if !known {
		return chain.Chain{}, false
	}
	return k.Tell(g.walk, o.ns, o.name)
}

// query has the parameters of a list.
type query struct {
	page       int
	find, node string
}

// pages are the links between the pages of a list.
type pages struct {
	// Total is how many lines there are, and First and Last the numbers of those that are shown.
	Total, First, Last int
	Previous, Next     string
	// Find is what the lines contain, if they are chosen so.
	Find string
}

// rows is how many lines of a list are on a page.
const rows = 100

// cut returns the lines of a page of a list, and the links to other pages.
func cut[T any](all []T, at string, q query) ([]T, pages) {
	last := max(0, (len(all)-1)/rows)
	n := min(max(q.page, 0), last)
	part := all[n*rows : min(len(all), (n+1)*rows)]
	p := pages{Total: len(all), First: n*rows + 1, Last: n*rows + len(part), Find: q.find}
	if len(all) == 0 {
		p.First = 0
	}
	if n > 0 {
		p.Previous = at + query{n - 1, q.find, q.node}.encode()
	}
	if n < last {
		p.Next = at + query{n + 1, q.find, q.node}.encode()
	}
	return part, p
}

// found says whether one of the words contains the search text.
func (q query) found(words ...string) bool {
	return q.find == "" || slices.ContainsFunc(words, func(w string) bool {
		return strings.Contains(strings.ToLower(w), strings.ToLower(q.find))
	})
}
