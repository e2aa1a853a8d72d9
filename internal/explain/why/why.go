package why

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/lease"
	"volplane.dev/volplane/internal/volume"
)

// Claim returns the chain from a claim to its mounts, as far as it exists; false if the
// claim does not exist.
func (w Walk) Claim(ns, name string) (chain.Chain, bool) {
	f := w.claim(ns, name)
	_, moved := f.moved("", "", ns+"/"+name)
	return f.chain(), f.Claim != nil || moved
}

// Volume returns the chain of the claim that a volume is bound to, or what happens to a
// volume without one; false if the volume does not exist.
func (w Walk) Volume(name string) (chain.Chain, bool) {
	v := cluster.Find(w.View.Volumes, name)
	if v == nil {
		l, moved := w.moved("pv/"+name, name, "")
		return chain.Chain{Subject: "pv/" + name, Links: []chain.Link{l}}, moved
	}
	return w.AboutVolume(v).Under("pv/" + name), true
}

// AboutVolume is Volume for one that was found; the chain is that of its claim, if it has one.
func (w Walk) AboutVolume(v *corev1.PersistentVolume) chain.Chain { return w.volume(v).chain() }

// Attachment returns the chain of the volume that is attached, or what happens to the
// attachment of a volume that is gone; false if the attachment does not exist.
func (w Walk) Attachment(name string) (chain.Chain, bool) {
	a := cluster.Find(w.View.Attachments, name)
	if a == nil {
		return chain.Chain{}, false
	}
	if v := a.Spec.Source.PersistentVolumeName; v != nil {
		if c, ok := w.Volume(*v); ok {
			return c.Under("volumeattachment/" + name), true
		}
	}
	l := w.Attached(a)
	return chain.Chain{Subject: l.Subject, Links: []chain.Link{l}}, true
}

// Pod returns the chains of all claims that a Pod uses, and what the Pod itself waits
// for; false if the Pod does not exist, unless it was deleted because of its node and its
// claim still exists.
func (w Walk) Pod(ns, name string) (chain.Chain, bool) {
	p := cluster.Find(w.View.Pods, ns+"/"+name)
	if p == nil {
		return w.deletedPod(ns, name)
	}
	return w.AboutPod(p), true
}

// AboutPod joins the chains of the claims of a Pod; the Pod itself is explained once.
func (w Walk) AboutPod(p *corev1.Pod) chain.Chain {
	joined, last := chain.Chain{Subject: "pod/" + p.Name}, w.mounted(p)
	for _, claim := range cluster.ClaimNames(p) {
		f := w.claim(p.Namespace, claim)
		f.OnlyPod = p.Name
		var links []chain.Link
		for _, l := range f.steps().Links {
			if l.Because.Reason == volume.ReasonTerminating && last.State == chain.OK {
				l.State = chain.OK // what waits for the Pod is not what the Pod waits for
			}
			if l != last {
				links = append(links, l)
			}
		}
		joined.Links = append(joined.Links, f.alive(links)...)
	}
	for _, l := range w.leases.Follow([]chain.Link{last}, lease.Facts{View: w.View}) {
		if l == last || !slices.Contains(joined.Links, l) {
			joined.Links = append(joined.Links, l)
		}
	}
	return joined
}

// chain explains the claim, or the volume if there is no claim, and which of the programs
// that it waits for is not alive.
func (f facts) chain() chain.Chain {
	c := f.steps()
	c.Links = f.alive(c.Links)
	return c
}

// alive adds to links who of those that they wait for is not alive.
func (f facts) alive(links []chain.Link) []chain.Link {
	return f.leases.Follow(links, lease.Facts{View: f.View, Volume: f.Volume, Driver: f.driverName()})
}

// steps returns the chain by itself.
func (f facts) steps() chain.Chain {
	if f.ClaimName == "" {
		c := chain.Chain{Links: []chain.Link{f.volumeAlone()}}
		c.Subject = c.Links[0].Subject
		c.Links = append(c.Links, f.attachments()...)
		return c
	}
	c := chain.Chain{Subject: "pvc/" + f.ClaimName}
	c.Links = append(c.Links, f.claim())
	if f.Claim == nil {
		return c
	}
	if f.Claim.DeletionTimestamp != nil && f.Claim.Spec.VolumeName == "" {
		return c // it gets no volume any more
	}
	binding := f.binding()
	c.Links = append(c.Links, binding...)
	switch {
	case binding[len(binding)-1].Because.Reason == volume.ReasonWaitForPodScheduled:
		c.Links = append(c.Links, f.mounts()...)
	case f.Claim.Status.Phase == corev1.ClaimBound && f.Volume != nil:
		c.Links = append(c.Links, f.volumeHealth()...)
		c.Links = append(c.Links, f.attachments()...)
		c.Links = append(c.Links, f.mounts()...)
		c.Links = append(c.Links, f.resize()...)
		c.Links = append(c.Links, f.modify()...)
	}
	return c
}
