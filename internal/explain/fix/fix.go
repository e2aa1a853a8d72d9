package fix

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/subject"
	"volplane.dev/volplane/internal/volume"
)

// Remedy is one way to free what waits. Nothing here carries it out.
type Remedy struct {
	// Command is for a shell; empty when there is something to do by other means.
	Command string `json:"command,omitempty"`
	// Does says what comes of it, Risk what may be lost by it.
	Does string `json:"does"`
	Risk string `json:"risk"`
}

const noRisk = "none"

// Remedies returns ways to free what a chain waits for, the safest first, chosen by the
// reason of its answer. ns is the namespace of the question, and tool the program that the user has: volplane or
// kubectl. What only kubectl can do keeps its name.
func Remedies(o state.Objects, ns, tool string, c chain.Chain) []Remedy {
	k, l := fixing{o, subject.Of(o.View(), ns, c), tool}, c.Answer()
	if l.State == chain.OK {
		return nil
	}
	switch l.Because.Reason {
	case volume.ReasonNodeGone:
		return k.node(strings.TrimPrefix(l.Subject, "node/"))
	case volume.ReasonLostWithNode:
		return k.lost(strings.TrimPrefix(l.Subject, "pv/"))
	case volume.ReasonTerminating, volume.ReasonDetaching, volume.ReasonFailedDetach:
		return k.finalizers(l)
	case volume.ReasonFailedDelete:
		return k.undeletable(l)
	case volume.ReasonMultiAttach, volume.ReasonInUse, volume.ReasonStillAttached, volume.ReasonStillMounted,
		volume.ReasonAttachLimit, volume.ReasonSELinuxLabelConflict,
		volume.ReasonFailedMount, volume.ReasonFailedAttach, volume.ReasonUnhealthy, volume.ReasonMountBroken:
		return k.holders(l)
	case volume.ReasonFailedResize, volume.ReasonFailedNodeResize, volume.ReasonResizing:
		return k.smaller()
	}
	return k.claims(l)
}

// fixing looks for ways out of a chain.
type fixing struct {
	state.Objects
	subject.Finder
	tool string
}

// claims returns ways for claims that have no volume.
func (k fixing) claims(l chain.Link) []Remedy {
	claim, name := k.Claim()
	switch l.Because.Reason {
	case volume.ReasonWaitForFirstConsumer:
		return []Remedy{{
			command("volplane", "mount", name, "DIR", "-n", k.Namespace),
			"mounts the claim on this host, as its first consumer, and has its volume created; in a cluster a Pod that uses " +
				"the claim does", noRisk,
		}}
	case volume.ReasonDriverMissing:
		return k.missingDriver(l)
	case volume.ReasonFailedBinding:
		if strings.HasPrefix(l.Subject, "storageclass") {
			return k.missingClass()
		}
	case volume.ReasonProvisioningFailed:
		if strings.HasPrefix(l.Subject, "storageclass") {
			return k.missingClass()
		}
		return k.otherRequest(name)
	case volume.ReasonClaimLost:
		adopt := command("volplane", "adopt", "DRIVER", "HANDLE", "--claim", k.Namespace+"/"+name)
		return []Remedy{{
			command("volplane", "orphans"),
			"lists the volumes that drivers have and that no PersistentVolume names: while the claim's is among them, its " +
				"data are there", noRisk,
		}, {
			command(k.tool, "delete", "pvc", name, "-n", k.Namespace),
			"the claim can be created again: with a volume that was found, by `" + adopt + "`, or empty",
			"the new claim has the old data only if it gets the old volume",
		}}
	case volume.ReasonClaimMisbound:
		return []Remedy{{
			command(k.tool, "delete", "pvc", name, "-n", k.Namespace),
			"the claim can be created again with the right volume, or by its Pod",
			"none for the volume's data, which is another claim's; what only this claim was bound to goes with its " +
				"reclaim policy",
		}}
	case volume.ReasonClaimUIDMismatch:
		if claim == nil {
			return nil
		}
		patch := `{"spec":{"claimRef":{"uid":"` + string(claim.UID) + `"}}}`
		return []Remedy{{
			command("kubectl", "patch", "pv", claim.Spec.VolumeName, "--type=merge", "-p", patch),
			"the volume becomes this claim's",
			"the data that an earlier claim of the same name has left then belongs to this one: make sure that this is wanted",
		}}
	case volume.ReasonMigrating:
		return k.migrations()
	}
	return nil
}

// otherRequest returns ways for a claim whose driver has made no volume.
func (k fixing) otherRequest(name string) []Remedy {
	return []Remedy{{
		"", "the driver is called again automatically: change what its message names (size, access modes, class, parameters)",
		noRisk,
	}, {
		command(k.tool, "delete", "pvc", name, "-n", k.Namespace),
		"ends the attempts, so that the claim can be created with another class or size",
		"none as long as it has no volume: a Pod that uses it keeps it until the Pod is deleted",
	}}
}

// migrations returns ways for volumes that are being moved to the bridge, or back.
func (k fixing) migrations() []Remedy {
	var out []Remedy
	for _, m := range k.Moves {
		run := Remedy{
			command("volplane", "flex", "migrate", "run", m.Volume), "continues to move the volume to the bridge",
			noRisk,
		}
		undo := Remedy{
			command("volplane", "flex", "migrate", "undo", m.Volume),
			"restores the objects as they were before the move", noRisk,
		}
		if !m.Back {
			out = append(out, run)
		}
		out = append(out, undo)
	}
	return out
}

// missingDriver returns ways for a driver that has not registered.
func (k fixing) missingDriver(l chain.Link) []Remedy {
	if install := driverstatus.Install(l.Because); len(install) > 0 {
		return []Remedy{{
			command(install...), "run on node " + l.Because.Next.Name + ": puts the driver where the agent finds it",
			"other volumes of the same driver there are served by the new version",
		}}
	}
	_, name, _ := strings.Cut(l.Subject, "/")
	class := cluster.First(k.Classes, func(c *storagev1.StorageClass) bool {
		return c.Name == name ||
			c.Provisioner == name
	})
	if class != nil && l.Because.Next == volume.User() {
		return []Remedy{{
			command(k.tool, "get", "sc", class.Name, "-o", "yaml"),
			"shows the class: delete it and create it again with the right provisioner, which cannot be changed in place",
			"none for existing volumes: they name their driver themselves",
		}}
	}
	return []Remedy{{
		command(k.tool, "get", "pods", "-A", "-o", "wide"),
		"shows whether the driver's Pods run, and where: start them, or look at their logs", noRisk,
	}}
}

// missingClass returns ways for a claim without a class.
func (k fixing) missingClass() []Remedy {
	var out []Remedy
	c, name := k.Claim()
	if c != nil && c.Spec.StorageClassName == nil {
		for _, class := range k.Classes {
			patch := `{"metadata":{"annotations":{"` + volume.AnnDefaultClass + `":"true"}}}`
			out = append(out, Remedy{
				command("kubectl", "patch", "sc", class.Name, "-p", patch),
				"makes class " + class.Name + " the default one, which the claim gets",
				"every other claim that names no class also gets it",
			})
		}
		return out
	}
	return []Remedy{{
		command(k.tool, "delete", "pvc", name, "-n", k.Namespace),
		"the claim can be created with an existing class: `" + k.tool + " get sc`; the class of a claim cannot be changed",
		"none as long as it has no volume",
	}}
}

// smaller reduces the request of a claim to its capacity.
func (k fixing) smaller() []Remedy {
	c, name := k.Claim()
	if c == nil {
		return nil
	}
	has := c.Status.Capacity[corev1.ResourceStorage]
	ask := command("volplane", "resize", name, "SIZE", "-n", k.Namespace)
	if k.tool == "kubectl" {
		patch := `{"spec":{"resources":{"requests":{"storage":"SIZE"}}}}`
		ask = command("kubectl", "patch", "pvc", name, "-n", k.Namespace, "-p", patch)
	}
	return []Remedy{{
		ask,
		"asks for a SIZE that the driver has, which has to be more than the " + has.String() + " that the claim has",
		"none: nothing shrinks",
	}}
}

// node returns ways for a node that does nothing.
func (k fixing) node(name string) []Remedy {
	const off = "only if you have made sure that it is off: a node that still writes while its volumes are attached " +
		"elsewhere destroys their data"
	n := cluster.Find(k.View.Nodes, name)
	if n == nil {
		var out []Remedy
		for _, p := range k.on(name) {
			out = append(out, Remedy{
				command("kubectl", "delete", "pod", p.Name, "-n", p.Namespace, "--grace-period=0", "--force"),
				"deletes the Pod of the node that does not exist; its volumes are then detached", off,
			})
		}
		return out
	}
	out := []Remedy{{"", "start node " + name + " and its agent: everything continues automatically", noRisk}}
	if nodelife.Ready(n) {
		return out
	}
	taint := corev1.TaintNodeOutOfService
	if !nodelife.OutOfService(n) {
		out = append(out, Remedy{
			command("kubectl", "taint", "node", name, taint+"=nodeshutdown:NoExecute"),
			"its Pods are deleted, and its volumes are detached and may be used elsewhere; take it back with `" +
				command("kubectl", "taint", "node", name, taint+"-") + "`", off,
		})
	}
	return append(out, Remedy{
		command("volplane", "delete", "node", name, "--lost"),
		"gives up the host, which never comes back: its Pods are deleted, its volumes are detached, and those on its own " +
			"disks are lost",
		off,
	})
}

// lost returns ways for a volume that was lost with its node.
func (k fixing) lost(name string) []Remedy {
	v := cluster.Find(k.View.Volumes, name)
	if v == nil {
		return nil
	}
	out := []Remedy{{
		command("volplane", "invite", v.Annotations[volume.AnnLostWith]),
		"if the host returns: with this invitation it joins again and brings the volume back", noRisk,
	}}
	if ref := v.Spec.ClaimRef; ref != nil {
		out = append(out, Remedy{
			command(k.tool, "delete", "pvc", ref.Name, "-n", ref.Namespace),
			"if not: the claim and the volume's object are deleted, so that the claim can be created again and its data " +
				"restored",
			"if the host returns after that, the volume is on it, and `volplane orphans` there lists it",
		})
	}
	return out
}

// on returns the Pods on a node that have not ended.
func (k fixing) on(node string) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(k.View.Pods.By(cluster.PodsByNode, node)), cluster.Finished)
}

// holders returns ways for a volume that a Pod or a node does not give up, or does not
// get.
func (k fixing) holders(l chain.Link) []Remedy {
	next := l.Because.Next
	if node := next.Node(); node != "" {
		if n := cluster.Find(k.View.Nodes, node); n == nil || !nodelife.Ready(n) {
			return k.node(node)
		}
	}
	name, is := next.Name, next.Kind == volume.KindPod
	if !is {
		name, is = strings.CutPrefix(l.Subject, "pod/")
	}
	if p := k.pod(name); is && p != nil {
		return []Remedy{k.deletePod(p)}
	}
	var out []Remedy
	claim, _ := k.Claim()
	for _, p := range k.Pods {
		if claim != nil && p.Namespace == claim.Namespace && slices.Contains(cluster.ClaimNames(p),
			claim.Name) && !cluster.Finished(p) {
			out = append(out, k.deletePod(p))
		}
	}
	return out
}

// pod returns a Pod by its name in the namespace of the question, or by the name that has
// its namespace before it; nil if there is none.
func (k fixing) pod(name string) *corev1.Pod {
	return cmp.Or(cluster.Find(k.View.Pods, k.Namespace+"/"+name), cluster.Find(k.View.Pods, name))
}

// deletePod deletes a Pod, and names what recreates it.
func (k fixing) deletePod(p *corev1.Pod) Remedy {
	r := Remedy{
		command(k.tool, "delete", "pod", p.Name, "-n", p.Namespace),
		"the Pod ends, its volumes are unmounted, and then detached",
		"what the program has not written is lost",
	}
	for _, owner := range p.OwnerReferences {
		r.Risk += "; " + owner.Kind + " " + owner.Name + " creates another one: scale it down if the volume is to stay unused"
	}
	return r
}

// undeletable returns ways for a volume that its driver does not delete.
func (k fixing) undeletable(l chain.Link) []Remedy {
	name := strings.TrimPrefix(l.Subject, "pv/")
	v := cluster.Find(k.View.Volumes, name)
	if v == nil {
		return nil
	}
	return []Remedy{{
		command("kubectl", "patch", "pv", name, "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`),
		"the driver is no longer asked to delete it; object and data stay",
		"none: delete both manually when they are not needed",
	}}
}

// finalizers returns ways for an object that is being deleted and stays.
func (k fixing) finalizers(l chain.Link) []Remedy {
	if next := l.Because.Next; next.Kind == volume.KindPod {
		if p := k.pod(next.Name); p != nil {
			return []Remedy{k.deletePod(p)}
		}
	}
	kind, name, _ := strings.Cut(l.Subject, "/")
	switch kind {
	case "pvc":
		if c := cluster.Find(k.View.Claims, k.Namespace+"/"+name); c != nil && c.DeletionTimestamp != nil {
			return removeFinalizers("pvc", k.Namespace, name, c.Finalizers)
		}
	case "pv":
		if v := cluster.Find(k.View.Volumes, name); v != nil && v.DeletionTimestamp != nil {
			return removeFinalizers("pv", "", name, v.Finalizers)
		}
	case "attachment", "volumeattachment":
		going := func(a *storagev1.VolumeAttachment) bool { return a.DeletionTimestamp != nil }
		if a := k.Attachment(name, going); a != nil {
			return removeFinalizers("volumeattachment", "", a.Name, a.Finalizers)
		}
	}
	return nil
}

// removeFinalizers returns the commands that remove other programs' finalizers, each with the clean-up that is then not
// done. One of volplane's own is never removed by hand, because it is removed when its reason ends: the answer says
// what ends the reason.
func removeFinalizers(kind, ns, name string, finalizers []string) []Remedy {
	var out []Remedy
	for i, f := range finalizers {
		if ends := ending(f); ends != "" {
			out = append(out, Remedy{Does: ends, Risk: noRisk})
			continue
		}
		at := "/metadata/finalizers/" + strconv.Itoa(i)
		// The test keeps another finalizer from being taken for this one.
		patch := fmt.Sprintf(`[{"op":"test","path":%q,"value":%q},{"op":"remove","path":%q}]`, at, f, at)
		args := []string{"kubectl", "patch", kind, name}
		if ns != "" {
			args = append(args, "-n", ns)
		}
		out = append(out, Remedy{
			command(append(args, "--type=json", "-p", patch)...), "takes finalizer " + f + " away",
			"it belongs to another program, which then cannot do what it is kept for: whatever that is (a copy, a backup, " +
				"a record, a resource elsewhere) leaks. Ask its owner first",
		})
	}
	return out
}

// ending says what ends the reason of a finalizer of volplane's own; "" for one of another program.
func ending(finalizer string) string {
	switch {
	case finalizer == volume.FinalizerClaimProtection:
		return "the claim is deleted when no Pod uses it: delete the Pods that do"
	case finalizer == volume.FinalizerVolumeProtection:
		return "the volume is deleted when no claim is bound to it: delete the claim"
	case finalizer == volume.FinalizerProvisioner:
		return "the volume is deleted when its driver has deleted it, or when its policy is Retain: see the driver's log " +
			"(`volplane driver logs NAME`)"
	case finalizer == volume.FinalizerCloning, finalizer == volume.FinalizerRestoring:
		return "it is deleted when no copy of it is being created: wait for the copy"
	case finalizer == volume.FinalizerSnapshotSource:
		return "it is deleted when no snapshot of it is being taken: wait for the snapshot, or delete it if it cannot be " +
			"taken"
	case strings.HasPrefix(finalizer, volume.FinalizerAttacherPrefix):
		return "it is deleted when the driver has detached the volume: see the driver's log (`volplane driver logs NAME`)"
	}
	return ""
}

// command joins the words of a command for a shell: names may come from a file that
// another person has written.
func command(words ...string) string {
	out := make([]string, 0, len(words))
	for _, w := range words {
		plain := func(r rune) bool {
			return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._/=:-@%+", r)
		}
		if w == "" || strings.ContainsFunc(w, func(r rune) bool { return !plain(r) }) {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}

// Render writes the answer and the ways out for people.
func Render(w io.Writer, c chain.Chain, fixes []Remedy) error {
	var b strings.Builder
	columns := chain.Columns(w)
	chain.WriteHeadline(&b, c, columns)
	switch {
	case c.Healthy():
		b.WriteString("\nThere is nothing to do.\n")
	case len(fixes) == 0:
		b.WriteString("\nNo command is known that frees it safely: do what the message names, or wait for\nthe one who " +
			"acts next.\n")
	}
	for _, f := range fixes {
		b.WriteString("\n")
		if f.Command != "" {
			b.WriteString(f.Command + "\n")
		}
		chain.Paragraph(&b, f.Does, columns)
		chain.Paragraph(&b, "Risk: "+f.Risk, columns)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
