package why

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/chain"
	"volplane.dev/volplane/internal/decide/lease"
	"volplane.dev/volplane/internal/decide/state"
	"volplane.dev/volplane/internal/volume"
)

// Claim returns the chain from a claim to its mounts, as far as it exists; false
// when there is no such claim.
func Claim(o state.Objects, ns, name string) (chain.Chain, bool) {
	f := index(o).claim(ns, name)
	_, moved := f.moved("", "", ns+"/"+name)
	return f.chain(), f.Claim != nil || moved
}

// Volume returns the chain of the claim that a volume is bound to, or what
// becomes of a volume without one; false when there is no such volume.
func Volume(o state.Objects, name string) (chain.Chain, bool) {
	k := index(o)
	v := cluster.Found(k.view.Volumes, name)
	if v == nil {
		l, moved := k.moved("pv/"+name, name, "")
		return chain.Chain{Subject: "pv/" + name, Links: []chain.Link{l}}, moved
	}
	return about("pv/"+name, k.volume(v).chain()), true
}

// Attachment returns the chain of the volume that is attached, or what becomes
// of the attachment of a volume that is gone; false when there is no such
// attachment.
func Attachment(o state.Objects, name string) (chain.Chain, bool) {
	a := cluster.First(o.Attachments, func(a *storagev1.VolumeAttachment) bool { return a.Name == name })
	if a == nil {
		return chain.Chain{}, false
	}
	if v := a.Spec.Source.PersistentVolumeName; v != nil {
		if c, ok := Volume(o, *v); ok {
			return about("volumeattachment/"+name, c), true
		}
	}
	l := index(o).alone(a)
	return chain.Chain{Subject: l.Subject, Links: []chain.Link{l}}, true
}

// Pod returns the chains of all claims that a Pod uses, and what the Pod waits
// for by itself; false when there is no such Pod.
func Pod(o state.Objects, ns, name string) (chain.Chain, bool) {
	k := index(o)
	p := cluster.Found(k.view.Pods, ns+"/"+name)
	if p == nil {
		return chain.Chain{}, false
	}
	return k.consumer(p), true
}

// consumer joins the chains of the claims of a Pod; the Pod itself is told once.
func (k known) consumer(p *corev1.Pod) chain.Chain {
	joined, last := chain.Chain{Subject: "pod/" + p.Name}, k.mounted(p)
	for _, claim := range cluster.ClaimNames(p) {
		f := k.claim(p.Namespace, claim)
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
	for _, l := range k.leases.Follow([]chain.Link{last}, lease.Facts{View: k.view}) {
		if l == last || !slices.Contains(joined.Links, l) {
			joined.Links = append(joined.Links, l)
		}
	}
	return joined
}

// chain explains the claim, or the volume when there is no claim, and who of those
// that it waits for is not alive.
func (f facts) chain() chain.Chain {
	c := f.steps()
	c.Links = f.alive(c.Links)
	return c
}

// alive adds to links who of those that they wait for is not alive.
func (f facts) alive(links []chain.Link) []chain.Link {
	return f.leases.Follow(links, lease.Facts{View: f.view, Volume: f.Volume, Driver: f.driverName()})
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
		c.Links = append(c.Links, f.attachments()...)
		c.Links = append(c.Links, f.mounts()...)
		c.Links = append(c.Links, f.resize()...)
	}
	return c
}

// about returns the chain under another subject.
func about(subject string, c chain.Chain) chain.Chain {
	return chain.Chain{Subject: subject, Links: c.Links}
}
