package dryrun

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// maxBinds bounds how often the binder reconciles a claim before it has done all that it
// can: it assigns a class, and then a volume.
const maxBinds = 4

// Predict returns the objects as they are after the binder has reconciled some claims, "namespace/name": claims that
// fit a volume that was created by hand are bound to it, and claims without a class have the default one.
func Predict(o state.Objects, claims ...string) state.Objects {
	for _, key := range claims {
		for range maxBinds {
			view := o.View()
			c := cluster.Find(view.Claims, key)
			if c == nil || c.Status.Phase == corev1.ClaimBound {
				break
			}
			facts := bind.FactsWithFree(view, c, func() *bind.Free { return bind.FreeOf(view) })
			facts.Served = true // the annotation for the provisioner is not written
			for _, w := range bind.Claim(facts).Writes {
				o.Claims = replaced(replaced(o.Claims, w.Claim), w.ClaimStatus)
				o.Volumes = replaced(replaced(o.Volumes, w.Volume), w.VolumeStatus)
			}
		}
	}
	return o
}

// object is what replaced finds objects by: a pointer that may be nil.
type object interface {
	comparable
	metav1.Object
}

// replaced returns the objects with one of them replaced by its future state, unless that is nil.
func replaced[T object](all []T, by T) []T {
	var none T
	if by == none {
		return all
	}
	out := make([]T, 0, len(all))
	for _, o := range all {
		if cluster.Key(o) == cluster.Key(by) {
			o = by
		}
		out = append(out, o)
	}
	return out
}

// Refused is the answer about an object that the API server does not take.
func Refused(subject, message string) chain.Chain {
	l := chain.New(subject, chain.Problem, volume.ReasonFailedClaim, "the API server refuses it: "+message, volume.User())
	return chain.Chain{Subject: subject, Links: []chain.Link{l}}
}

// Served says whether all that a chain waits for comes by itself: nothing has a
// problem, and no user has to do something first.
func Served(c chain.Chain) bool {
	return !slices.ContainsFunc(c.Links, func(l chain.Link) bool {
		return l.State == chain.Problem || l.State == chain.Waiting && l.Because.Next == volume.User()
	})
}
