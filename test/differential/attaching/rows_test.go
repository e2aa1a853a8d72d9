package attaching

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"volplane.dev/volplane/test/internal/differential"
)

// attachRow is one reason why attachments may differ; explains says whether it is the reason for all differences about
// a volume.
type attachRow struct {
	reason   string
	explains func(d difference, volume string) bool
}

// attachReasons are the reasons for which what is attached may differ.
func attachReasons() []attachRow {
	return []attachRow{
		{
			"Kubernetes protects a volume before it finds out that it cannot ask the driver, for want of a secret or a node's " +
				"id; here it is protected when the driver is asked",
			protectedEarly,
		},
		{
			"what a detach needs is recorded with the attach; Kubernetes cannot detach for ever when the volume's object or " +
				"its secret has gone",
			stuck,
		},
		{
			"an attachment that volplane did not create serves Pods as well, and keeps a volume from other nodes; one with " +
				"the name that it would have here goes when no Pod wants it. Kubernetes knows only those that it has made, and " +
				"after a restart those of its names",
			madeByHand,
		},
		{
			"when a Pod's claim or its volume's object has been taken away by force, what the Pod wants is unknown, and " +
				"what its node does not use is detached; Kubernetes remembers it until it is restarted",
			forgotten,
		},
		{
			"when a volume's object has been taken away by force and recreated, what its node does not use is detached and " +
				"attached again, and protected again; Kubernetes does not look, and does not protect the new object",
			replaced,
		},
		{
			"a Pod that is being deleted keeps its volumes until its node has taken it away; Kubernetes detaches what the " +
				"node does not use when the Pod's containers do not run any more",
			func(d difference, v string) bool {
				return slices.ContainsFunc(attachments(d.OnlyOurs, v), func(l string) bool {
					return wants(going(d.Ours, true), nodeOf(l), v) && !wants(going(d.Ours, false), nodeOf(l), v)
				})
			},
		},
		{
			"a volume for one node may be where its attach has failed, and other nodes wait; Kubernetes goes on, and it may " +
				"be attached to two",
			onTwoNodes,
		},
		{
			"a volume is detached from the node's id that it was attached to; Kubernetes detaches it from the id that the " +
				"node has now, and it stays attached to the old one",
			func(d difference, v string) bool {
				const call = "asked ControllerUnpublishVolume"
				return differential.Has(d.OnlyOurs, call, "-"+v+`"`) && differential.Has(d.OnlyTheirs, call, "-"+v+`"`)
			},
		},
		{
			"an attachment of a volume by a driver that it is not of is refused; Kubernetes asks that driver",
			func(d difference, v string) bool {
				return differential.Has(d.Ours, "volume "+v+" ", needless) &&
					differential.Has(d.Theirs, "attachment of "+v+" ", " by "+differential.DriverName+" ")
			},
		},
		{
			"a success ends the error of an earlier attempt; Kubernetes' attacher leaves one that it has not yet heard of, " +
				"though it has written it itself",
			errorLeft,
		},
		{
			"what is attached to a node whose object was deleted stays while Pods are there; Kubernetes detaches it when it " +
				"restarts, and may attach it again later",
			keptForPods,
		},
		{
			"what was attached, and is not mounted, is detached when its attachment has been deleted without that, and " +
				"attached again if a Pod wants it; Kubernetes only recreates the attachment",
			detachedLate,
		},
		{
			"which of two nodes that wait gets a volume is not promised",
			eitherNode,
		},
	}
}

// attachRows judge attachments by these reasons.
func attachRows() []row {
	var out []row
	for _, r := range attachReasons() {
		out = append(out, row{Reason: r.reason, Explains: func(d difference, line string) bool {
			all := volumesIn(d, line)
			return len(all) > 0 && !slices.ContainsFunc(all, func(v string) bool { return !r.explains(d, v) })
		}})
	}
	out = append(out, row{
		Reason: "after failures Kubernetes' controllers pause for up to minutes, and look at an attachment, or ask a " +
			"driver to attach, later than volplane",
		Explains: func(d difference, line string) bool {
			all := volumesIn(d, line)
			return len(all) > 0 && !strings.HasPrefix(line, "asked ControllerUnpublishVolume ") &&
				!slices.ContainsFunc(all, func(v string) bool { return !pausing(d, v) })
		},
	})
	return append(out, spotRows()...)
}

// volumesIn returns the volumes that a line is about; for a node, those for which the sides differ.
func volumesIn(d difference, line string) []string {
	if node, ok := strings.CutPrefix(line, "node "); ok {
		node, _, _ = strings.Cut(node, " ")
		a, b := mounts(d.Ours, node), mounts(d.Theirs, node)
		return slices.Concat(differential.Without(a, b), differential.Without(b, a))
	}
	if found := regexp.MustCompile(`(?:^attachment of |^volume |-)(v[0-9]+)\b`).FindStringSubmatch(line); found != nil {
		return found[1:]
	}
	return nil
}

// mounts returns what a node may mount.
func mounts(lines []string, node string) []string {
	for _, l := range lines {
		if found := regexp.MustCompile("^node " + node + ` may mount \[(.*?)\]`).FindStringSubmatch(l); found != nil {
			return strings.Fields(found[1])
		}
	}
	return nil
}

// attachments returns the lines of a volume's attachments.
func attachments(lines []string, v string) []string {
	return slices.DeleteFunc(slices.Clone(lines),
		func(l string) bool { return !strings.HasPrefix(l, "attachment of "+v+" ") })
}

// nodeOf returns the node of an attachment's line.
func nodeOf(line string) string { return strings.Fields(line)[4] }

// wants says whether a Pod on a node wants a volume.
func wants(lines []string, node, v string) bool {
	return slices.ContainsFunc(lines, func(l string) bool {
		return regexp.MustCompile(fmt.Sprintf(`^pod \S+ on %s wants \[[^\]]*\b%s\b`, node, v)).MatchString(l)
	})
}

// going returns the lines of objects that are, or are not, being deleted.
func going(lines []string, is bool) []string {
	return slices.DeleteFunc(slices.Clone(lines),
		func(l string) bool { return !strings.HasSuffix(l, fmt.Sprint(" going=", is)) })
}

// forgotten says whether only Kubernetes keeps an attachment, or keeps it in volumesAttached, for a Pod whose claim or
// volume was deleted.
func forgotten(d difference, v string) bool {
	there := differential.Has(d.Ours, "volume "+v+" ") &&
		differential.Has(d.Ours, "claim "+strings.Replace(v, "v", "c", 1)+" ")
	return !there && slices.ContainsFunc(attachments(d.Theirs, v), func(l string) bool {
		return wants(d.Theirs, nodeOf(l), v)
	})
}

// replaced says whether only volplane has detached a volume whose object was recreated.
func replaced(d difference, v string) bool {
	const call = "asked ControllerUnpublishVolume"
	// It may have been called earlier, too.
	protected := differential.Has(d.OnlyOurs, "volume "+v+" ", "finalizers=[external-attacher/") &&
		differential.Has(d.OnlyTheirs, "volume "+v+" ", "finalizers=[]")
	detached := differential.Has(d.OnlyOurs, call, "-"+v+`"`) || protected && differential.Has(d.Ours, call, "-"+v+`"`)
	return differential.Has(d.Ours, "volume "+v+" ", annAnew+"=yes") && detached && !differential.Has(d.OnlyTheirs, call, "-"+v+`"`)
}

// onTwoNodes says whether only Kubernetes attaches a volume to a second node while
// the attach to the first fails, or when it has failed.
func onTwoNodes(d difference, v string) bool {
	ours, theirs := attachments(d.Ours, v), attachments(d.Theirs, v)
	if len(ours) != 1 || len(theirs) != 2 {
		return false
	}
	failing := func(lines []string) bool {
		return slices.ContainsFunc(lines, func(l string) bool {
			return nodeOf(l) == nodeOf(ours[0]) && strings.Contains(l, " attached=false ") &&
				!strings.Contains(l, " attachError=none ")
		})
	}
	const answer = "answered ControllerPublishVolume of "
	// Kubernetes may not have noticed that it has succeeded since.
	unheard := strings.Contains(ours[0], " attached=true ") && slices.Contains(theirs, ours[0])
	failed := one(d.Ours, v) && differential.Has(d.Ours, answer, "-"+v+" with ") &&
		differential.Has(d.Theirs, answer, "-"+v+" with ")
	return failing(ours) || failed && (failing(theirs) || unheard)
}

// detachedLate says whether only volplane has detached a volume whose attachment was deleted without a detach, and both
// sides attach it in the same way now.
func detachedLate(d difference, v string) bool {
	const call = "asked ControllerUnpublishVolume"
	return differential.Has(d.Ours, takenAway+v+" on ") &&
		slices.Equal(attachments(d.Ours, v), attachments(d.Theirs, v)) &&
		differential.Has(d.OnlyOurs, call, "-"+v+`"`) && !differential.Has(d.OnlyTheirs, call, "-"+v+`"`)
}

// errorLeft says whether attachments differ only because Kubernetes shows an
// error of one that is attached.
func errorLeft(d difference, v string) bool {
	ours, theirs := attachments(d.OnlyOurs, v), attachments(d.OnlyTheirs, v)
	failed := regexp.MustCompile(` attached=true (.*) attachError=.* detachError=`)
	return len(ours) == 1 && len(theirs) == 1 &&
		ours[0] == failed.ReplaceAllString(theirs[0], " attached=true $1 attachError=none detachError=")
}

// protectedEarly says whether only Kubernetes protects a volume for which it has not
// called the driver.
func protectedEarly(d difference, v string) bool {
	const finalizer = "external-attacher/test-csi-example-com"
	asked := differential.Has(d.Theirs, "asked ControllerPublishVolume", "-"+v+`"`)
	return !asked && !differential.Has(d.Ours, "volume "+v+" ", finalizer) &&
		differential.Has(d.Theirs, "volume "+v+" ", finalizer)
}

func stuck(d difference, v string) bool {
	return slices.ContainsFunc(attachments(d.OnlyTheirs, v), func(l string) bool {
		return strings.Contains(l, "detachError=its own") && strings.HasSuffix(l, "going=true")
	})
}

// madeByHand says whether a user has created an attachment of a volume.
func madeByHand(d difference, v string) bool {
	return differential.Has(attachments(slices.Concat(d.Ours, d.Theirs), v), annByHand+"=yes")
}

// pausing says whether a driver has failed to attach a volume, and it is attached at volplane only, or on neither side;
// for a volume of many nodes, at each node that needs it.
func pausing(d difference, v string) bool {
	later := func(here, there []string) bool {
		attached := func(lines []string) bool { return differential.Has(lines, " attached=true ") }
		return len(here) == 1 && len(there) <= 1 && (attached(here) || !attached(there))
	}
	if !differential.Has(slices.Concat(d.Ours, d.Theirs), "answered ControllerPublishVolume of ", "-"+v+" with ") {
		return false
	}
	here, there := attachments(d.Ours, v), attachments(d.Theirs, v)
	if len(here) < 2 || one(d.Ours, v) {
		return later(here, there)
	}
	for n := range nodesOfOne {
		p := spot{v, nodeName(n)}
		told := slices.Contains(mounts(d.Ours, p.node), v) || !slices.Contains(mounts(d.Theirs, p.node), v)
		if !told || !later(p.at(d.Ours), p.at(d.Theirs)) {
			return false
		}
	}
	return true
}

// keptForPods says whether only Kubernetes has detached a volume that a Pod wants on that node.
func keptForPods(d difference, v string) bool {
	here := attachments(d.Ours, v)
	return differential.Has(d.OnlyTheirs, "asked ControllerUnpublishVolume", "-"+v+`"`) &&
		len(here) == 1 && differential.Has(here, " attached=true ") && wants(going(d.Ours, false), nodeOf(here[0]), v) &&
		wants(going(d.Theirs, false), nodeOf(here[0]), v)
}

func eitherNode(d difference, v string) bool {
	a, b := attachments(d.Ours, v), attachments(d.Theirs, v)
	return len(a) == 1 && len(b) == 1 && nodeOf(a[0]) != nodeOf(b[0]) && wants(d.Ours, nodeOf(a[0]), v) &&
		wants(d.Ours, nodeOf(b[0]), v)
}
