package why_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/volume"
)

// own are the sentences that belong to package why itself: that the object in question
// does not exist, and states that no decision covers and no program has reported yet. A
// link that is OK does not need the words of a decision either.
func own() []string {
	return []string{
		"node n1 does not exist", "node n9 does not exist",
		"there is no ", "is not ready", "is being moved", "has not reported anything about the Pod yet",
		"the Pod has no node yet",
		"the Pod is being deleted", "is detached from node n1 by force",
		"the Pod is on node n2, and volume v1 can be used on ",
	}
}

// TestWordsAreThoseOfTheDecisions: everything else that is reported in any scene has the
// words of the decision, or of a condition or an event.
func TestWordsAreThoseOfTheDecisions(t *testing.T) {
	for _, r := range slices.Concat(whytest.ClaimRows(), whytest.AttachmentRows(), whytest.VolumeRows(),
		whytest.MoveRows(), whytest.DeletedRows()) {
		s := whytest.New()
		r.Change(s)
		told, _ := whytest.Explain(s.All, strings.Replace(r.Ask, "/a1", "/"+whytest.AttachmentName(), 1))
		said := decided(s.All)
		for _, l := range told.Links {
			has := func(words string) bool { return words != "" && strings.Contains(l.Because.Message, words) }
			if l.State != chain.OK && !slices.ContainsFunc(own(), has) && !slices.ContainsFunc(said, has) {
				t.Errorf("%s: nobody else says of %s: %s (%s)", r.Name, l.Subject, l.Because.Message, l.Because.Reason)
			}
		}
	}
}

// decided returns what all decisions say, and what is written in the objects.
func decided(o state.Objects) []string {
	view := o.View()
	var out []string
	add := func(b volume.Because) { out = append(out, b.Message) }
	for _, c := range o.Claims {
		facts := bind.ClaimFactsOf(view, c)
		add(bind.Claim(facts).Because)
		facts.Candidates = o.Volumes
		add(bind.Claim(facts).Because)
		p := provision.ClaimFactsOf(view, provision.ClaimFacts{Claim: c})
		p.Partial = true
		for _, in := range append(o.Begun, nil) {
			p.Intent, p.Driver = in, whytest.Driver
			for _, p.Reachable = range []bool{false, true} {
				add(provision.Claim(p).Because)
			}
		}
		add(provision.Copied(c, o.Begun))
		out = append(out, strings.Join(c.Finalizers, ", "))
	}
	for _, v := range o.Volumes {
		add(bind.Volume(bind.VolumeFactsOf(view, v)).Because)
		f := provision.VolumeFactsOf(view, v)
		for _, f.Reachable = range []bool{false, true} {
			_, b := provision.Volume(f)
			add(b)
		}
		out = append(out, v.Status.Message, strings.Join(v.Finalizers, ", "))
	}
	for _, n := range o.Nodes {
		plan := attach.Node(attach.FactsOf(view, n.Name, attach.Memory{}))
		add(plan.Because)
		for _, v := range o.Volumes {
			add(plan.Wanted(v, n.Name).Because)
		}
		for _, a := range o.Attachments {
			c, _ := plan.Unwanted(a)
			add(c.Because)
		}
	}
	for _, a := range o.Attachments {
		f := attach.AttachmentFacts(view, a)
		f.Reachable = true
		add(attach.ConditionOf(f).Because)
		if e := a.Status.DetachError; e != nil {
			add(attach.Failed(a, true, attach.AnswerOf(e)))
		}
	}
	return append(out, inObjects(o.Lists, o.Warnings)...)
}

// inObjects returns what conditions and events say.
func inObjects(o cluster.Lists, warnings []*corev1.Event) (out []string) {
	for _, p := range o.Pods {
		for _, c := range p.Status.Conditions {
			out = append(out, c.Message)
		}
	}
	for _, e := range warnings {
		out = append(out, e.Message)
	}
	return out
}
