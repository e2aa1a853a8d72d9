package why

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/force"
	"volplane.dev/volplane/internal/explain/foreign"
	"volplane.dev/volplane/internal/explain/kubelet"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// attachments explains, for each node, whether the volume is attached where it is wanted
// and only there.
func (f facts) attachments() []chain.Link {
	if f.Volume == nil {
		return nil
	}
	if f.Volume.Spec.CSI == nil || attach.SkipsAttach(f.Driver) {
		return f.needless()
	}
	var out []chain.Link
	wanted := f.wanted()
	for _, node := range wanted {
		if a := cluster.First(f.attached(),
			func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName == node }); a != nil {
			out = append(out, f.attachment(attachmentSubject(node), a))
		} else {
			out = append(out, f.unattached(node)...)
		}
	}
	for _, a := range f.attached() {
		if !slices.Contains(wanted, a.Spec.NodeName) && f.OnlyPod == "" {
			out = append(out, f.leaving(a)...)
		}
	}
	return out
}

// needless reports attachments of a volume that, as far as is known here, needs no attachment: those that cannot
// be completed or removed.
func (f facts) needless() []chain.Link {
	var out []chain.Link
	for _, a := range f.attached() {
		if a.DeletionTimestamp == nil && a.Status.AttachError == nil {
			continue
		}
		facts := attach.AttachmentFacts(f.View, a)
		facts.Reachable = true
		out = append(out, chain.FromCondition(attachmentSubject(a.Spec.NodeName), attach.ConditionOf(facts)))
	}
	return out
}

// leaving explains an attachment to a node without a Pod that is explained.
func (f facts) leaving(a *storagev1.VolumeAttachment) []chain.Link {
	links := []chain.Link{f.attachment(attachmentSubject(a.Spec.NodeName), a)}
	l, dead := force.Facts{
		View: f.View, Warnings: f.Warnings, Volume: f.Volume, Claim: f.Namespace + "/" + f.ClaimName,
	}.Detach(a)
	if dead {
		links = append(links, l)
	}
	return links
}

// wanted returns the nodes of the Pods that are explained, each once.
func (f facts) wanted() []string {
	var out []string
	for _, p := range f.covered() {
		if n := p.Spec.NodeName; n != "" && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

func attachmentSubject(node string) string { return "attachment/" + node }

// plan returns what is decided about a node's volumes.
func (w Walk) plan(node string) attach.NodePlan {
	if _, ok := w.plans[node]; !ok {
		w.plans[node] = attach.Node(attach.FactsOf(w.View, node, attach.Memory{}))
	}
	return w.plans[node]
}

// unattached explains a volume that Pods on a node want and that has no attachment to it,
// and what it waits for.
func (f facts) unattached(node string) []chain.Link {
	told := f.plan(node).Wanted(f.Volume, node)
	if b, ok := f.usedElsewhere(node); ok && told.Reason == volume.ReasonAttaching {
		told = volume.Condition{Because: b}
	}
	if told.Reason == volume.ReasonNodeGone {
		return nil // the links of its Pods report it
	}
	links := []chain.Link{f.link(attachmentSubject(node), told)}
	if told.Reason != volume.ReasonMultiAttach {
		return links
	}
	for _, a := range f.attached() {
		if a.Spec.NodeName == node {
			continue
		}
		for _, l := range f.leaving(a) {
			if l.State != chain.OK {
				links = append(links, l)
			}
		}
		for _, p := range f.users() {
			if l := f.mounted(p); p.Spec.NodeName == a.Spec.NodeName && l.State != chain.OK {
				links = append(links, l)
			}
		}
	}
	return links
}

// link returns the link of what a decision says; who acts next is the host of the
// driver, if it has one.
func (f facts) link(subject string, t volume.Condition) chain.Link {
	if s := f.source(); t.Next == volume.Driver(s.CSI) {
		t.Next = s.Next()
	}
	return chain.FromCondition(subject, t)
}

// usedElsewhere explains a volume that the attachdetach controller does not attach,
// because another node to which it was attached still reports it as in use, without an
// attachment: only the process that decides remembers that. The event is outdated once
// the node no longer reports the volume.
func (f facts) usedElsewhere(node string) (volume.Because, bool) {
	for _, p := range f.covered() {
		if p.Spec.NodeName != node {
			continue
		}
		e := f.Warnings.About(p.UID, volume.ReasonFailedAttach)
		if e == nil || !foreign.IsMultiAttach(e.Message) || state.CauseOf(e).Object != "pv/"+f.Volume.Name {
			continue
		}
		if next := volume.ParseActor(e.Annotations[volume.AnnNext]); !next.IsZero() && f.inUseBeside(node) {
			return volume.Say(volume.ReasonMultiAttach, next, state.Message(e)), true
		}
	}
	return volume.Because{}, false
}

// inUseBeside says whether another node says that it uses the volume.
func (f facts) inUseBeside(node string) bool {
	unique := volume.UniqueName(f.Volume.Spec.CSI.Driver, f.Volume.Spec.CSI.VolumeHandle)
	return slices.ContainsFunc(f.View.Nodes.By(cluster.NodesByVolume, unique), func(n *corev1.Node) bool {
		return n.Name != node
	})
}

// Attached explains an attachment by itself.
func (w Walk) Attached(a *storagev1.VolumeAttachment) chain.Link {
	return facts{Walk: w}.attachment("volumeattachment/"+a.Name, a)
}

// attachment explains an attachment, wanted or not.
func (f facts) attachment(subject string, a *storagev1.VolumeAttachment) chain.Link {
	s, node := driverstatus.Driver{CSI: a.Spec.Attacher}, a.Spec.NodeName
	if f.Volume != nil {
		s = f.source()
	}
	if told, unwanted := f.plan(node).Unwanted(a); unwanted {
		return f.unwanted(subject, a, told)
	}
	if a.Status.Attached && a.Status.AttachError == nil && a.DeletionTimestamp == nil {
		return chain.New(subject, chain.OK, volume.ReasonAttached, "attached to node "+node, volume.Actor{})
	}
	facts := attach.AttachmentFacts(f.View, a)
	facts.Reachable = true
	told := attach.ConditionOf(facts)
	if b, ok := f.cannot(s, a, told); ok {
		return chain.Broken(subject, b)
	}
	return f.link(subject, told)
}

// cannot says why the driver of an attachment cannot be called, if more is known
// than what the attachment says: it is not where the controllers run, or not on the
// node, or it is a driver of a host that is broken.
func (f facts) cannot(
	s driverstatus.Driver, a *storagev1.VolumeAttachment, told volume.Condition,
) (volume.Because, bool) {
	served := a.Spec.NodeName
	if f.Volume != nil {
		served = f.servedOn()
	}
	if b, ok := f.Uncalled(s, served); ok {
		return b, true
	}
	if told.Reason == volume.ReasonDriverMissing {
		return drivers.Absent(f.View, s, a.Spec.NodeName)
	}
	if n := drivers.ControlPlane(f.View); n != nil && told.Reason == volume.ReasonFailedAttach {
		b, ok := drivers.Broken(f.View, s, n.Name, told.Cause)
		b.Reason, b.Message = told.Reason, attach.Failed(a, false, volume.Answer{Text: b.Message}).Message
		return b, ok
	}
	return volume.Because{}, false
}

// unwanted explains an attachment that no Pod wants.
func (f facts) unwanted(subject string, a *storagev1.VolumeAttachment, told volume.Condition) chain.Link {
	if told.Reason == volume.ReasonStillMounted {
		if l, ok := f.Failed(subject, a, volume.ReasonFailedUnmount, told.Next); ok {
			return l
		}
		if _, down := f.NodeDown(a.Spec.NodeName); down {
			told.Stuck = true
		} else if driver := a.Spec.Attacher; !drivers.Registered(f.View, driver, a.Spec.NodeName) {
			told.Reason, told.Stuck, told.Next = volume.ReasonDriverMissing, true, volume.Driver(driver)
			told.Message += ", and driver " + driver + ", which unmounts it, has not registered there"
			told.Message += kubelet.Plugin(f.View, driver, a.Spec.NodeName)
		}
	}
	if e := a.Status.DetachError; e != nil && told.Reason == volume.ReasonDetaching {
		told = volume.Condition{Because: attach.Failed(a, true, attach.AnswerOf(e)), Stuck: true}
	}
	return f.link(subject, told)
}

func (w Walk) node(name string) *corev1.Node { return cluster.Find(w.View.Nodes, name) }
