package why

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// deletedPod explains a Pod that was deleted because of its node, as long as one of its claims exists.
func (w Walk) deletedPod(ns, name string) (chain.Chain, bool) {
	c := chain.Chain{Subject: "pod/" + name}
	d, ok := w.deletion(func(d state.Deletion) bool {
		return d.Event.InvolvedObject.Namespace == ns && d.Event.InvolvedObject.Name == name
	})
	if !ok {
		return c, false
	}
	for _, claim := range d.Claims {
		if f := w.claim(ns, claim); f.existed(d.Event) {
			f.OnlyPod = name
			c.Links = append(c.Links, f.chain().Links...)
		}
	}
	if len(c.Links) == 0 {
		return c, false
	}
	c.Links = append(c.Links, chain.New(c.Subject, chain.Problem, volume.ReasonNodeGone, wasDeleted(d.Event),
		volume.User()))
	return c, true
}

// deletion returns the newest deletion of a Pod that matches.
func (w Walk) deletion(match func(state.Deletion) bool) (state.Deletion, bool) {
	if i := slices.IndexFunc(w.deletions, match); i >= 0 {
		return w.deletions[i], true
	}
	return state.Deletion{}, false
}

// lastUser reports the last Pod that used a claim which no Pod uses now, if the Pod was deleted because of its node.
func (f facts) lastUser() []chain.Link {
	if f.OnlyPod != "" || len(f.View.Pods.By(cluster.PodsByClaim, f.Namespace+"/"+f.ClaimName)) > 0 {
		return nil
	}
	d, ok := f.deletion(func(d state.Deletion) bool {
		return d.Event.InvolvedObject.Namespace == f.Namespace && slices.Contains(d.Claims, f.ClaimName)
	})
	if !ok || !f.existed(d.Event) {
		return nil
	}
	pod := "pod/" + d.Event.InvolvedObject.Name
	return []chain.Link{chain.New(pod, chain.OK, volume.ReasonNodeGone, wasDeleted(d.Event), volume.Actor{})}
}

// existed says whether the claim exists, and is older than an event about a Pod that used a claim of its name.
func (f facts) existed(e *corev1.Event) bool {
	return f.Claim != nil && !e.LastTimestamp.Time.Before(f.Claim.CreationTimestamp.Time)
}

func wasDeleted(e *corev1.Event) string {
	return "pod " + e.InvolvedObject.Name + " was deleted: " + state.Message(e)
}
