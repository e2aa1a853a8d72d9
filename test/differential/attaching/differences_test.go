package attaching

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
)

// spot is a volume on a node.
type spot struct{ volume, node string }

// spotRow is one reason why attachments may differ; explains says whether it is the reason for all differences about a
// volume on a node.
type spotRow struct {
	reason   string
	explains func(d difference, p spot) bool
}

// spotReasons are the reasons why attachments may differ that apply to a volume on one node, and excuse nothing
// elsewhere.
func spotReasons() []spotRow {
	return []spotRow{
		{
			"what is attached to a node whose object was deleted, or recreated, keeps a volume for one node from others while " +
				"Pods are there; Kubernetes does not know of it after a restart, and attaches the volume to a second node",
			secondAttachment,
		},
		{
			"a volume for one node is where its detach has failed, and other nodes wait; Kubernetes is not certain of it " +
				"then, and asks the driver to attach it to a second node",
			undetached,
		},
		{
			"a node that has as many volumes as its driver takes gets no more, and the Pod hears of it; Kubernetes asks the " +
				"driver nevertheless",
			fullNode,
		},
		{
			"nothing is attached to a node whose object was deleted; Kubernetes goes on while Pods come to it",
			noNode,
		},
		{
			"what is attached when its driver begins to need no attaching stays while a Pod wants it; Kubernetes detaches it " +
				"when the node does not use it",
			keptNeedless,
		},
		{
			"an attachment says itself what the driver calls its node, for as long as the node's own word is missing; " +
				"Kubernetes asks the driver to attach only when the node has it",
			recordedNode,
		},
		{
			"Kubernetes waits two minutes for an attachment that goes while it waits until it is attached, and makes " +
				"another one then",
			waitsForGone,
		},
		{
			"whether a volume is detached between the end of a Pod and the begin of one in its place, on the same node, is " +
				"not promised",
			sameNode,
		},
		{
			"Kubernetes pauses for up to two minutes after an attach has failed before it looks whether the attachment is " +
				"still wanted",
			unwantedLater,
		},
		{
			"nothing is known to be mounted on a node whose object was deleted and that no Pod is on; Kubernetes, when it has " +
				"been restarted, waits six minutes for the node to unmount",
			neverUnmounted,
		},
		{
			"a node may not begin to mount what is being detached, by any client's request; Kubernetes does not inform it " +
				"when another client requested it",
			detachedByHand,
		},
		{
			"what a driver that needs no attaching any more has attached is detached when no Pod wants it; Kubernetes looks " +
				"for that every minute only",
			needlessLater,
		},
		{
			"a node is informed of what is attached; Kubernetes takes everything for attached whose driver needs no " +
				"attaching, also when its attachment has been taken away by force, until it looks for that, every minute",
			takenForAttached,
		},
		{
			"what no Pod wants is detached, and its Pods elsewhere have waited for that; Kubernetes does not hear of a Pod " +
				"that goes while its driver needs no attaching, and looks for that every minute only, also when the driver " +
				"needs it again",
			leftWhileNeedless,
		},
		{
			"what an attach may have done under the name that a driver had for a node before is undone; Kubernetes goes on " +
				"under the new name",
			formerName,
		},
	}
}

// spotRows judge attachments by these reasons.
func spotRows() []row {
	var out []row
	for _, r := range spotReasons() {
		out = append(out, row{Reason: r.reason, Explains: func(d difference, line string) bool {
			all := spotsIn(d, line)
			return len(all) > 0 && !slices.ContainsFunc(all, func(p spot) bool { return !r.explains(d, p) })
		}})
	}
	return append(out, row{Reason: "whether a call was under way when the controllers ended depends on their pauses; " +
		"what it has done shows at one side", Explains: unheard})
}

// spotsIn returns the volumes and nodes that a line is about.
func spotsIn(d difference, line string) []spot {
	var out []spot
	switch {
	case strings.HasPrefix(line, "attachment of "):
		out = append(out, spot{strings.Fields(line)[2], nodeOf(line)})
	case strings.HasPrefix(line, "node "):
		for _, v := range volumesIn(d, line) {
			out = append(out, spot{v, strings.Fields(line)[1]})
		}
	case strings.HasPrefix(line, "asked "):
		if found := regexp.MustCompile(`"volume_id":"\S*-(v[0-9]+)","node_id":"([^"]*)"`).FindStringSubmatch(
			line); found != nil {
			out = append(out, spot{found[1], nodeNamed(found[2])})
		}
	case strings.HasPrefix(line, "volume "), strings.HasPrefix(line, "answered "):
		for _, v := range volumesIn(d, line) {
			out = append(out, attachedDifferently(d, v)...)
		}
	case strings.HasPrefix(line, "stored "):
		for _, v := range volumesIn(d, line) {
			for _, id := range slices.Concat(onlyStoredAt(d.Ours, d.Theirs, v), onlyStoredAt(d.Theirs, d.Ours, v)) {
				out = append(out, spot{v, nodeNamed(id)})
			}
		}
	}
	return out
}

// attachedDifferently returns the nodes to which the sides attach a volume
// differently.
func attachedDifferently(d difference, v string) []spot {
	var out []spot
	for n := range nodesOfOne {
		if p := (spot{v, nodeName(n)}); !slices.Equal(p.at(d.Ours), p.at(d.Theirs)) {
			out = append(out, p)
		}
	}
	return out
}

// nodeNamed returns the node that has an id.
func nodeNamed(id string) string {
	_, n, _ := strings.Cut(strings.TrimPrefix(id, "id-"), "-")
	return strings.TrimSuffix(n, otherID)
}

// onlyStoredAt returns the ids of nodes to which a volume is published according to one side's driver only. Everything
// else about the volume must be the same.
func onlyStoredAt(one, other []string, v string) []string {
	stored := func(lines []string) (s csitest.Volume) {
		for _, l := range lines {
			if text, ok := strings.CutPrefix(l, "stored "); ok && json.Unmarshal([]byte(text), &s) == nil &&
				strings.HasSuffix(s.ID, "-"+v) {
				return s
			}
		}
		return csitest.Volume{}
	}
	a, b := stored(one), stored(other)
	nodes := differential.Without(a.Nodes, b.Nodes)
	a.Nodes, b.Nodes = nil, nil
	if fmt.Sprint(a) != fmt.Sprint(b) {
		return nil
	}
	return nodes
}

// at returns a volume's attachments to a node.
func (p spot) at(lines []string) []string {
	return slices.DeleteFunc(attachments(lines, p.volume), func(l string) bool { return nodeOf(l) != p.node })
}

// called says whether a driver was called with a method for a volume at a node.
func (p spot) called(lines []string, method string) bool {
	return slices.ContainsFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "asked "+method+" ") && slices.Contains(spotsIn(difference{}, l), p)
	})
}

// secondAttachment says whether only Kubernetes attaches a single-node volume to a node while both sides have it
// attached to another one, whose object is missing or new, and on which Pods want it.
func secondAttachment(d difference, p spot) bool {
	first := attachments(d.Ours, p.volume)
	if len(first) != 1 || !slices.Contains(d.Theirs, first[0]) || nodeOf(first[0]) == p.node || len(p.at(d.Theirs)) != 1 ||
		!one(d.Ours, p.volume) {
		return false
	}
	gone := nodeOf(first[0])
	known := func(lines []string) bool {
		return slices.ContainsFunc(lines, func(l string) bool { return isNode(l, gone) && !strings.HasSuffix(l, "-anew") })
	}
	return !known(d.Ours) && !known(d.Theirs) && wants(d.Ours, gone, p.volume)
}

// undetached says whether only Kubernetes attaches a single-node volume to a node where a Pod waits for it, while its
// detach from another one fails at both sides.
func undetached(d difference, p spot) bool {
	first := attachments(d.Ours, p.volume)
	if len(first) != 1 || nodeOf(first[0]) == p.node || len(p.at(d.Theirs)) != 1 || !one(d.Ours, p.volume) ||
		!wants(going(d.Ours, false), p.node, p.volume) {
		return false
	}
	fails := func(lines []string) bool {
		at := spot{p.volume, nodeOf(first[0])}.at(lines)
		return len(at) == 1 && strings.HasSuffix(at[0], " going=true") && !strings.Contains(at[0], " detachError=none ")
	}
	return fails(d.Ours) && fails(d.Theirs)
}

// isNode says whether a line is that of a node.
func isNode(line, node string) bool { return strings.HasPrefix(line, "node "+node+" may ") }

// noNode says whether only Kubernetes attaches a volume to a node that has no
// object, for a Pod.
func noNode(d difference, p spot) bool {
	const publish = "ControllerPublishVolume"
	there := func(l string) bool { return isNode(l, p.node) }
	return !slices.ContainsFunc(d.Ours, there) && !slices.ContainsFunc(d.Theirs, there) && !p.called(d.Ours, publish) &&
		p.called(d.Theirs, publish) &&
		len(p.at(d.Ours)) == 0 && len(p.at(d.Theirs)) == 1 && wants(d.Ours, p.node, p.volume)
}

// fullNode says whether only Kubernetes attaches a volume to a node that has reached its limit here.
func fullNode(d difference, p spot) bool {
	found := regexp.MustCompile(`^node ` + p.node + ` may .* \(takes ([0-9]+)\)`)
	i := slices.IndexFunc(d.Ours, found.MatchString)
	if i < 0 || len(p.at(d.Ours)) > 0 || len(p.at(d.Theirs)) == 0 {
		return false
	}
	has := 0
	for _, l := range d.Ours {
		if strings.HasPrefix(l, "attachment of ") && nodeOf(l) == p.node &&
			strings.Contains(l, " by "+differential.DriverName+" ") {
			has++
		}
	}
	limit, err := strconv.Atoi(found.FindStringSubmatch(d.Ours[i])[1])
	return err == nil && has >= limit
}

// keptNeedless says whether only Kubernetes has detached a volume, or begun to, although a Pod wants it, and its driver
// needs no attaching.
func keptNeedless(d difference, p spot) bool {
	ours, theirs := p.at(d.Ours), p.at(d.Theirs)
	// The first step is that the Node no longer lists it.
	begun := slices.Contains(mounts(d.Ours, p.node), p.volume) && !slices.Contains(mounts(d.Theirs, p.node), p.volume)
	return differential.Has(d.Ours, nowNeedless) && differential.Has(d.Theirs, nowNeedless) && len(ours) == 1 &&
		strings.HasSuffix(ours[0], " going=false") &&
		wants(going(d.Ours, false), p.node, p.volume) &&
		(len(theirs) == 0 || strings.HasSuffix(theirs[0], " going=true") || begun && slices.Equal(ours, theirs))
}

// recordedNode says whether only Kubernetes does not know the driver's id of a node, although the attachment records
// it.
func recordedNode(d difference, p spot) bool {
	ours, theirs := p.at(d.Ours), p.at(d.Theirs)
	unregistered := func(lines []string) bool { return differential.Has(lines, "node "+p.node+" may ", " driver []") }
	return unregistered(d.Ours) && unregistered(d.Theirs) && len(ours) == 1 && len(theirs) == 1 &&
		strings.Contains(ours[0], "annotations=["+volume.AnnNodeID+"=id-") && strings.HasSuffix(ours[0], " going=false") &&
		strings.Contains(theirs[0], " attached=false ") && strings.Contains(theirs[0], " attachError=its own(code none) ") &&
		strings.HasSuffix(theirs[0], " going=false")
}

// waitsForGone says whether only Kubernetes has not attached again a volume that both have detached, and that a Pod
// wants on a node with the driver while no other node has it.
func waitsForGone(d difference, p spot) bool {
	const detach = "ControllerUnpublishVolume"
	ours := p.at(d.Ours)
	return len(ours) == 1 && strings.Contains(ours[0], " attached=true ") &&
		len(attachments(d.Theirs, p.volume)) == len(attachments(d.Ours, p.volume))-1 &&
		len(p.at(d.Theirs)) == 0 && p.called(d.Ours, detach) && p.called(d.Theirs, detach) &&
		wants(going(d.Ours, false), p.node, p.volume) && differential.Has(d.Theirs, "node "+p.node+" may ", " driver [id-")
}

// sameNode says whether one side has detached a volume that both have attached at a node where a replacement of a Pod
// wants it, or where it cannot or need not be attached again here.
func sameNode(d difference, p spot) bool {
	ours, theirs := p.at(d.Ours), p.at(d.Theirs)
	anew := slices.DeleteFunc(going(d.Ours, false), func(l string) bool { return !strings.Contains(l, "-anew on ") })
	if len(theirs) != 1 || !wants(anew, p.node, p.volume) {
		return false
	}
	const detach = "ControllerUnpublishVolume"
	same := len(ours) == 1 && ours[0] == theirs[0]
	return same || p.called(d.Ours, detach) && !p.called(d.Theirs, detach) && staysAway(d, p)
}

// staysAway says whether a volume that was detached here is not attached again: it is not needed, the node has no
// driver, or the attach fails, for the first time, or the detach does.
func staysAway(d difference, p spot) bool {
	ours := p.at(d.Ours)
	if len(ours) == 0 {
		return differential.Has(d.Ours, nowNeedless) && differential.Has(d.Theirs, nowNeedless)
	}
	nobody := differential.Has(d.Ours, "node "+p.node+" may ", " driver []") &&
		strings.Contains(ours[0], " attachError=its own(code none) ")
	fails := differential.Has(d.OnlyOurs, "answered ControllerPublishVolume of ", "-"+p.volume+" with ") &&
		strings.Contains(ours[0], " attached=false ")
	stuck := strings.HasSuffix(ours[0], " going=true") && !strings.Contains(ours[0], " detachError=none ")
	return len(ours) == 1 && (nobody || fails || stuck)
}

// unwantedLater says whether only Kubernetes keeps an attachment that has failed
// and that no Pod wants; here it is gone, or being deleted.
func unwantedLater(d difference, p spot) bool {
	const publish = "ControllerPublishVolume"
	theirs := p.at(d.Theirs)
	kept := slices.ContainsFunc(p.at(d.Ours), func(l string) bool { return !strings.HasSuffix(l, " going=true") })
	return p.called(d.Ours, publish) == p.called(d.Theirs, publish) && !kept && len(theirs) == 1 &&
		strings.Contains(theirs[0], " attached=false ") && !strings.Contains(theirs[0], " attachError=none ") &&
		strings.HasSuffix(theirs[0], " going=false") && !wants(d.Theirs, p.node, p.volume) &&
		!strings.Contains(theirs[0], annByHand)
}

// detachedByHand says whether only Kubernetes lets a node mount a volume that is
// being detached at both sides.
func detachedByHand(d difference, p spot) bool {
	ours := p.at(d.Ours)
	return len(ours) == 1 && slices.Equal(ours, p.at(d.Theirs)) && strings.HasSuffix(ours[0], " going=true") &&
		!slices.Contains(mounts(d.Ours, p.node), p.volume) && slices.Contains(mounts(d.Theirs, p.node), p.volume)
}

// neverUnmounted says whether only Kubernetes keeps a volume attached to a node without an object, and on which no Pod
// wants it.
func neverUnmounted(d difference, p spot) bool {
	const publish = "ControllerPublishVolume"
	there := func(l string) bool { return isNode(l, p.node) }
	return !slices.ContainsFunc(d.Ours, there) && !slices.ContainsFunc(d.Theirs, there) &&
		p.called(d.Ours, publish) == p.called(d.Theirs, publish) && p.onlyTheirsStays(d)
}

// needlessLater says whether only Kubernetes keeps a volume attached that no Pod wants and whose driver needs no
// attaching.
func needlessLater(d difference, p spot) bool {
	return differential.Has(d.Ours, nowNeedless) && differential.Has(d.Theirs, nowNeedless) && p.onlyTheirsStays(d)
}

// takenForAttached says whether only Kubernetes lets a node mount a volume that is attached to it on neither side, and
// whose driver needs no attaching.
func takenForAttached(d difference, p spot) bool {
	return differential.Has(d.Ours, nowNeedless) && differential.Has(d.Theirs, nowNeedless) && len(p.at(d.Ours)) == 0 &&
		len(p.at(d.Theirs)) == 0 &&
		!slices.Contains(mounts(d.Ours, p.node), p.volume) && slices.Contains(mounts(d.Theirs, p.node), p.volume)
}

// leftWhileNeedless says whether only Kubernetes keeps a volume attached that no Pod has wanted since its driver
// stopped needing attaching, or has for that reason not attached it where a Pod waits for it.
func leftWhileNeedless(d difference, p spot) bool {
	left := func(p spot) bool {
		return differential.Has(d.Theirs, differential.Aside+leftBehind+p.volume+" on "+p.node) && p.onlyTheirsStays(d)
	}
	theirs := attachments(d.Theirs, p.volume)
	waits := len(theirs) == 1 && one(d.Ours, p.volume) && len(p.at(d.Ours)) == 1 &&
		wants(going(d.Ours, false), p.node, p.volume)
	return left(p) || waits && left(spot{p.volume, nodeOf(theirs[0])})
}

// formerName says whether only volplane has detached a volume from an earlier id of the node, to which both had
// attached it, and to which it is not attached now.
func formerName(d difference, p spot) bool {
	ours := p.at(d.Ours)
	if len(ours) != 1 || !strings.HasSuffix(ours[0], " going=false") {
		return false
	}
	now := regexp.MustCompile(regexp.QuoteMeta(volume.AnnNodeID) + `=([^ \]]+)`).FindStringSubmatch(ours[0])
	undone := slices.DeleteFunc(slices.Clone(d.OnlyOurs), func(l string) bool {
		return !strings.HasPrefix(l, "asked ControllerUnpublishVolume ") || !slices.Contains(spotsIn(d, l), p)
	})
	return now != nil && len(undone) > 0 && !slices.ContainsFunc(undone, func(l string) bool {
		id := regexp.MustCompile(`"node_id":"([^"]*)"`).FindStringSubmatch(l)[1]
		attach := []string{"asked ControllerPublishVolume ", "-" + p.volume + `"`, `"node_id":"` + id + `"`}
		return id == now[1] || !differential.Has(d.Ours, attach...) || !differential.Has(d.Theirs, attach...)
	})
}

// onlyTheirsStays says whether only Kubernetes keeps an attachment that no Pod
// wants and its node does not use.
func (p spot) onlyTheirsStays(d difference) bool {
	ours, theirs := p.at(d.Ours), p.at(d.Theirs)
	used := slices.ContainsFunc(d.Ours, func(l string) bool {
		return regexp.MustCompile(`^node ` + p.node + ` may .* uses \[[^\]]*\b` + p.volume +
			`\b.* taints \[\]`).MatchString(l)
	})
	return !used && !wants(d.Ours, p.node, p.volume) && len(theirs) == 1 && strings.HasSuffix(theirs[0], " going=false") &&
		(len(ours) == 0 || strings.HasSuffix(ours[0], " going=true"))
}

// one says whether a volume may be attached to one node only.
func one(lines []string, v string) bool {
	return differential.Has(lines, "volume "+v+" ", "ReadWriteOnce") && !differential.Has(lines, "volume "+v+" ", "Many")
}

// unheard says whether a line differs for a call about the same volume and node
// that only one side's driver had under way when it gave no answers.
func unheard(d difference, line string) bool {
	if strings.HasPrefix(line, "stored ") {
		return storedUnheard(d, line)
	}
	found := regexp.MustCompile(`^(?:volume|answered (\S+) of \S*-?)\b(v[0-9]+) `).FindStringSubmatch(line)
	if found == nil {
		all := spotsIn(d, line)
		return len(all) > 0 && !slices.ContainsFunc(all, func(p spot) bool {
			return !hadUnderWay(d, "-"+p.volume+" at id-", "-"+p.node+",") &&
				!hadUnderWay(d, "-"+p.volume+" at id-", "-"+p.node+otherID+",")
		})
	}
	return hadUnderWay(d, found[1], "-"+found[2]+" at ")
}

// storedUnheard says whether a driver has a volume at other nodes only because
// calls without an answer were done.
func storedUnheard(d difference, line string) bool {
	all := spotsIn(d, line)
	done := func(one, other []string, method string, p spot) bool {
		return slices.ContainsFunc(differential.Without(one, other), func(l string) bool {
			return differential.Has([]string{l}, differential.Unanswered+method+" of ", "-"+p.volume+" at id-", "-"+p.node,
				", done: true")
		})
	}
	explained := func(keeps, lacks []string, v string) bool {
		return !slices.ContainsFunc(onlyStoredAt(keeps, lacks, v), func(id string) bool {
			p := spot{v, nodeNamed(id)}
			return !done(keeps, lacks, "ControllerPublishVolume", p) && !done(lacks, keeps, "ControllerUnpublishVolume", p)
		})
	}
	return len(all) > 0 && explained(d.Ours, d.Theirs, all[0].volume) && explained(d.Theirs, d.Ours, all[0].volume)
}

// hadUnderWay says whether only one side had a call, with these words, under way
// when it gave no answers.
func hadUnderWay(d difference, words ...string) bool {
	return slices.ContainsFunc(slices.Concat(differential.Without(d.Ours, d.Theirs),
		differential.Without(d.Theirs, d.Ours)), func(l string) bool {
		return strings.HasPrefix(l, differential.Unanswered) && differential.Has([]string{l}, words...)
	})
}
