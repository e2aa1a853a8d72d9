package kube

import (
	"slices"
	"strings"
	"testing"
)

// TestAttachRowsAreNarrow: a reason that holds for a volume on one node excuses
// what it is about, and nothing beside it.
func TestAttachRowsAreNarrow(t *testing.T) {
	t.Parallel()
	for _, c := range narrowCases() {
		slices.Sort(c.ours)
		if reason := explain(c.ours, c.theirs, spotRows()); (reason != "") != c.explained {
			t.Errorf("%s: explained by %q", c.name, reason)
		}
	}
}

// narrowCase is two states, and whether a reason explains how they differ.
type narrowCase struct {
	name         string
	ours, theirs []string
	explained    bool
}

func narrowCases() []narrowCase {
	const (
		attachment = "attachment of v0 to n1 named of its own by test.csi.example.com attached=false metadata=map[] attachError=its own(code none) detachError=none annotations=[] finalizers=[] going=false"
		volume     = `volume v0 Bound for c0 uid of c0 annotations=[] finalizers=[] going=false spec={"controllerPublishSecretRef":{"name":"s0"},"accessModes":["ReadWriteOnce"]}`
		published  = `asked ControllerPublishVolume {"volume_id":"id-g1-s0-v0","node_id":"id-s0-n1"}`
		elsewhere  = `asked ControllerPublishVolume {"volume_id":"id-g1-s0-v0","node_id":"id-s0-n0"}`
		nowhere    = `stored {"ID":"id-g1-s0-v0","Nodes":null}`
		stored     = `stored {"ID":"id-g1-s0-v0","Nodes":["id-s0-n1"]}`
		kept       = unanswered + "ControllerPublishVolume of id-g1-s0-v0 at id-s0-n1, done: true"
		pod        = "pod p0 on n0 wants [v0] going=false"
		waiter     = "pod p1 on n1 wants [v0] going=false"
		moved      = "pod p1-anew on n1 wants [v0] going=false"
		undone     = `asked ControllerUnpublishVolume {"volume_id":"id-g1-s0-v0","node_id":"id-s0-n1"}`
		n0         = "node n0 may mount [] uses [] taints [] driver [id-s0-n0]"
		n1         = "node n1 may mount [] uses [] taints [] driver [id-s0-n1]"
	)
	recorded := strings.Replace(attachment, "annotations=[] finalizers=[]", "annotations=[csi.alpha.kubernetes.io/node-id=id-s0-n1] finalizers=[external-attacher/test-csi-example-com]", 1)
	first := strings.Replace(strings.Replace(attachment, " to n1 ", " to n0 ", 1), "attached=false", "attached=true", 1)
	full := strings.Replace(n1, "[id-s0-n1]", "[id-s0-n1 (takes 1)]", 1)
	other := strings.Replace(attachment, " of v0 ", " of v7 ", 1)
	unregistered := strings.Replace(n1, "[id-s0-n1]", "[]", 1)
	attached := strings.Replace(recorded, "attached=false", "attached=true", 1)
	leaving := strings.Replace(attached, "going=false", "going=true", 1)
	mounting := strings.Replace(n1, "may mount []", "may mount [v0]", 1)
	return []narrowCase{
		{"a call under way", []string{nowhere}, []string{stored, kept}, true},
		{"a call under way that was not done", []string{nowhere}, []string{stored, strings.Replace(kept, "true", "false", 1)}, false},
		{"a call under way at the other side", []string{nowhere, kept}, []string{stored}, false},
		{"a call under way at another node", []string{nowhere}, []string{stored, strings.Replace(kept, "-n1,", "-n0,", 1)}, false},
		{"a call under way at both", []string{nowhere, kept}, []string{stored, kept}, false},
		{"a call under way, and another size", []string{nowhere}, []string{strings.Replace(stored, `"Nodes"`, `"Bytes":1,"Nodes"`, 1), kept}, false},
		{"a second attachment", []string{first, volume, pod, n1}, []string{first, attachment, volume, pod, n1, published}, true},
		{"a second attachment of a node that is there", []string{first, volume, pod, n0, n1}, []string{first, attachment, volume, pod, n0, n1, published}, false},
		{"a second attachment that nobody keeps from", []string{first, volume, n1}, []string{first, attachment, volume, n1, published}, false},
		{"a second attachment here", []string{first, attachment, volume, pod, n1, published}, []string{first, volume, pod, n1}, false},
		{"a second attachment, and a call elsewhere", []string{first, volume, pod, n1}, []string{first, attachment, volume, pod, n1, published, elsewhere}, false},
		{"no node", []string{volume, waiter}, []string{attachment, volume, waiter, published}, true},
		{"no node, and no Pod", []string{volume}, []string{attachment, volume, published}, false},
		{"a node", []string{volume, waiter, n1}, []string{attachment, volume, waiter, n1, published}, false},
		{"no node, and only volplane attaches", []string{attachment, volume, waiter, published}, []string{volume, waiter}, false},
		{"unwanted later", []string{volume}, []string{attachment, volume}, true},
		{"unwanted later, and a Pod wants it", []string{volume, waiter, n1}, []string{attachment, volume, waiter, n1}, false},
		{"unwanted later, and it is attached", []string{volume, n1}, []string{attached, volume, n1}, false},
		{"waiting for what has gone", []string{attached, waiter, n1, undone}, []string{waiter, n1, undone}, true},
		{"waiting for what was never detached", []string{attached, waiter, n1}, []string{waiter, n1}, false},
		{"waiting for what nobody wants", []string{attached, n1, undone}, []string{n1, undone}, false},
		{"waiting, and it is elsewhere", []string{attached, waiter, n1, undone}, []string{first, waiter, n1, undone}, false},
		{"detached by hand", []string{leaving, n1}, []string{leaving, mounting}, true},
		{"detached by hand, and mounted here", []string{leaving, mounting}, []string{leaving, n1}, false},
		{"mounted at Kubernetes only", []string{attached, n1}, []string{attached, mounting}, false},
		{"a node that never unmounts", []string{leaving, undone}, []string{attached}, true},
		{"a node that is there and never unmounts", []string{n1, undone}, []string{attached, n1}, false},
		{"a node that never unmounts, with a Pod", []string{waiter, undone}, []string{attached, waiter}, false},
		{"a node that unmounts", []string{attached}, []string{undone}, false},
		{"kept by Kubernetes without need", []string{n1, undone, nowNeedless}, []string{attached, n1, nowNeedless}, true},
		{"kept by Kubernetes with need", []string{n1, undone, onceNeedless}, []string{attached, n1, onceNeedless}, false},
		{"detached between two Pods, without a driver", []string{attachment, moved, unregistered, undone}, []string{attached, moved, unregistered}, true},
		{"detached between two Pods, with a driver", []string{attachment, moved, n1, undone}, []string{attached, moved, n1}, false},
		{"detached between two Pods", []string{attached, moved, undone}, []string{attached, moved}, true},
		{"detached under a Pod", []string{attached, waiter, undone}, []string{attached, waiter}, false},
		{"detached between two Pods, and it stays away", []string{moved, n1, undone}, []string{attached, moved, n1}, false},
		{"a full node", []string{other, volume, full}, []string{other, attachment, volume, full, published}, true},
		{"a node that is not full", []string{volume, full}, []string{attachment, volume, full, published}, false},
		{"a full node that gets more here", []string{other, attachment, volume, full, published}, []string{other, volume, full}, false},
		{"a node known by the attachment", []string{attached, unregistered, published}, []string{attachment, unregistered}, true},
		{"a node that is registered", []string{attached, n1, published}, []string{attachment, n1}, false},
		{"kept without need", []string{first, pod, n0, nowNeedless}, []string{pod, n0, nowNeedless}, true},
		{"kept without a Pod", []string{first, n0, nowNeedless}, []string{n0, nowNeedless}, false},
		{"kept with need", []string{first, pod, n0, onceNeedless}, []string{pod, n0, onceNeedless}, false},
	}
}
