package attaching

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/test/internal/differential"
)

const (
	// nodesOfOne is how many nodes a sequence has at most.
	nodesOfOne = 2
	// otherID ends the id that a node has after its driver was registered again.
	otherID = "-anew"
)

func nodeName(n int) string { return fmt.Sprint("n", n) }

// nodeID returns the driver's name of a node, the same in all games.
func nodeID(space, node string) string {
	_, sequence, _ := strings.Cut(space, "-")
	return "id-" + sequence + "-" + node
}

// attachDice draws the sequences about attachments.
type attachDice struct{ *dice }

// drawAttaching draws what users, kubelets and drivers do around volumes that
// are attached to nodes.
func drawAttaching(seed uint64, length int) sequence {
	d := &attachDice{differential.NewDice(seed)}
	s := sequence{Seed: seed, Ops: []op{makeNode("n0"), makeNode("n1"), d.NewSecret("s0"), d.newWiredVolume()}}
	if d.IntN(3) == 0 {
		s.Ops = append(s.Ops, d.AttachFault("ControllerPublishVolume"))
	}
	if d.IntN(5) == 0 {
		s.Ops = append(s.Ops, registerDriver("n0", "", 1), d.newWiredVolume())
	}
	for len(s.Ops) < length+5 {
		s.Ops = append(s.Ops, d.attachingOp())
	}
	switchAttaching(s)
	return s
}

// switchAttaching has the driver, which all sequences of a batch have in common,
// say for some steps that it needs no attaching: in every fourth batch, in which
// controllers are not restarted.
func switchAttaching(s sequence) {
	block := s.Seed / differential.Batch
	if block%4 != 1 {
		return
	}
	r := differential.NewRand(block)
	off := 5 + r.IntN(differential.Length/2)
	s.Ops[off].Restart, s.Ops[off+2+r.IntN(3)].Restart = differential.WithoutAttach, differential.WithAttach
}

func (d *attachDice) attachingOp() op {
	return d.OneOf([]differential.Weighted{
		{Often: 9, Draw: d.newUser},
		{Often: 4, Draw: d.newWiredVolume},
		{Often: 5, Draw: func() op { return differential.DeletePod(d.user()) }},
		{Often: 2, Draw: func() op { return terminatePod(d.user(), d.IntN(4) > 0) }},
		{Often: 1, Draw: func() op {
			return finishPod(d.user(), differential.Pick(d, corev1.PodSucceeded, corev1.PodFailed))
		}},
		{Often: 2, Draw: func() op { return movePod(d.user(), d.anyNode()) }},
		{Often: 5, Draw: func() op { return mountAll(d.anyNode()) }},
		{Often: 4, Draw: func() op { return unmountAll(d.anyNode()) }},
		{Often: 2, Draw: func() op { return taint(d.anyNode(), d.IntN(2) == 0) }},
		{Often: 1, Draw: func() op {
			return notReady(d.anyNode(), differential.Pick(d, corev1.ConditionTrue, corev1.ConditionUnknown))
		}},
		{Often: 1, Draw: func() op { return deleteNode(d.anyNode()) }},
		{Often: 2, Draw: func() op { return makeNode(d.anyNode()) }},
		{Often: 1, Draw: func() op { return replaceNode(d.anyNode()) }},
		{Often: 2, Draw: func() op { return d.changeCSINode(d.anyNode()) }},
		{Often: 1, Draw: func() op { return attachByHand(d.Volume(), d.anyNode(), d.IntN(2) == 0) }},
		{Often: 2, Draw: func() op { return detachByHand(d.Volume(), d.anyNode(), d.IntN(3) > 0) }},
		{Often: 1, Draw: func() op { return forceDetach(d.Volume(), d.anyNode()) }},
		{Often: 3, Draw: func() op { return d.AttachFault("ControllerPublishVolume") }},
		{Often: 2, Draw: func() op { return d.AttachFault("ControllerUnpublishVolume") }},
		{Often: 3, Draw: func() op { return differential.Heal(d.Int()) }},
		{Often: 1, Draw: func() op { return differential.DeleteVolume(d.Volume()) }},
		{Often: 1, Draw: func() op { return differential.LoseVolume(d.Volume()) }},
		{Often: 1, Draw: func() op { return replaceVolume(d.Volume()) }},
		{Often: 1, Draw: func() op { return differential.DeleteClaim(strings.Replace(d.Volume(), "v", "c", 1)) }},
		{Often: 1, Draw: d.ChangeSecret},
		{Often: 1, Draw: differential.Disturb},
	})
}

func (d *attachDice) anyNode() string { return nodeName(d.IntN(nodesOfOne)) }
func (d *attachDice) user() string    { return fmt.Sprint("p", d.IntN(d.Pods+1)) }

// newWiredVolume creates a volume and a claim bound to it.
func (d *attachDice) newWiredVolume() op {
	modes := differential.Pick(d, corev1.ReadWriteOnce, corev1.ReadWriteOnce, corev1.ReadWriteOnce, corev1.ReadWriteMany,
		corev1.ReadOnlyMany, corev1.ReadWriteOncePod)
	v := differential.CSIVolume("",
		differential.Pick(d, differential.DriverName, differential.DriverName, differential.DriverName,
			differential.DriverName, differential.DriverName, differential.DriverName, differential.DriverName, needless), modes)
	v.Spec.VolumeMode, v.Spec.CSI.FSType, v.Spec.CSI.ReadOnly = d.VolumeMode(), differential.Pick(d, "",
		"xfs"), d.IntN(6) == 0
	if d.IntN(6) == 0 {
		v.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Name: differential.Pick(d, "s0", "s1")}
	}
	name := fmt.Sprint(d.Volumes)
	d.Volumes++
	text := fmt.Sprintf("make volume v%s of %s with claim c%s: %v read only %v secret %v", name, v.Spec.CSI.Driver, name,
		v.Spec.AccessModes, v.Spec.CSI.ReadOnly, v.Spec.CSI.ControllerPublishSecretRef)
	return op{Text: text, Do: func(ctx context.Context, s side, space string) error {
		v := v.DeepCopy()
		v.Name = space + "-v" + name
		if v.Spec.CSI.ControllerPublishSecretRef != nil {
			v.Spec.CSI.ControllerPublishSecretRef.Namespace = space
		}
		return s.Wire(ctx, space, "c"+name, v)
	}}
}

// newUser creates a Pod that uses one claim, or two.
func (d *attachDice) newUser() op {
	name, node := fmt.Sprint("p", d.Pods), d.anyNode()
	d.Pods++
	claims := []string{fmt.Sprint("c", d.IntN(d.Volumes))}
	if other := fmt.Sprint("c", d.IntN(d.Volumes)); d.IntN(4) == 0 && other != claims[0] {
		claims = append(claims, other)
	}
	return op{
		Text: fmt.Sprintf("make pod %s on %s with claims %v", name, node, claims),
		Do: func(ctx context.Context, s side, space string) error {
			return makePod(ctx, s, space, name, space+"-"+node, claims...)
		},
	}
}

func terminatePod(name string, runs bool) op {
	return op{
		Text: fmt.Sprintf("ask for the end of pod %s, whose container runs: %v", name, runs),
		Do: func(ctx context.Context, s side, space string) error {
			if runs {
				running := []byte(`{"status":{"containerStatuses":[{"name":"c","image":"none","imageID":"none","ready":true,"restartCount":0,"state":{"running":{}}}]}}`)
				if _, err := s.Client.CoreV1().Pods(space).Patch(ctx, name, types.MergePatchType, running, metav1.PatchOptions{},
					"status"); err != nil {
					return err
				}
			}
			return s.Client.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{})
		},
	}
}

func finishPod(name string, phase corev1.PodPhase) op {
	return op{
		Text: fmt.Sprintf("let pod %s end as %s", name, phase),
		Do: func(ctx context.Context, s side, space string) error {
			_, err := s.Client.CoreV1().Pods(space).Patch(ctx, name, types.MergePatchType,
				fmt.Appendf(nil, `{"status":{"phase":%q}}`, phase), metav1.PatchOptions{}, "status")
			return err
		},
	}
}

// mountAll marks a node's attached volumes as in use, as a kubelet would; volumes in use stay so.
func mountAll(node string) op {
	return op{Text: "let " + node + " use what it may mount", Do: func(ctx context.Context, s side, space string) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, space+"-"+node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		all := n.Status.VolumesInUse
		for _, v := range n.Status.VolumesAttached {
			if !slices.Contains(all, v.Name) {
				all = append(all, v.Name)
			}
		}
		return uses(ctx, s, n.Name, all...)
	}}
}

func unmountAll(node string) op {
	return op{Text: "let " + node + " use nothing", Do: func(ctx context.Context, s side, space string) error {
		return uses(ctx, s, space+"-"+node)
	}}
}

func taint(node string, out bool) op {
	text, taints := "take the taints from "+node, "null"
	if out {
		text, taints = "taint "+node+" as out of service", `[{"key":"`+corev1.TaintNodeOutOfService+`","effect":"NoExecute"}]`
	}
	return op{Text: text, Do: func(ctx context.Context, s side, space string) error {
		_, err := s.Client.CoreV1().Nodes().Patch(ctx, space+"-"+node, types.MergePatchType,
			[]byte(`{"spec":{"taints":`+taints+`}}`), metav1.PatchOptions{})
		return err
	}}
}

func notReady(node string, ready corev1.ConditionStatus) op {
	return op{
		Text: "let the readiness of " + node + " be " + string(ready),
		Do: func(ctx context.Context, s side, space string) error {
			return s.NodeStatus(ctx, space+"-"+node,
				map[string]any{"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}})
		},
	}
}

func deleteNode(node string) op {
	return op{Text: "delete " + node, Do: func(ctx context.Context, s side, space string) error {
		return s.Client.CoreV1().Nodes().Delete(ctx, space+"-"+node, metav1.DeleteOptions{})
	}}
}

func makeNode(node string) op {
	return op{Text: "make " + node, Do: func(ctx context.Context, s side, space string) error {
		return s.MakeNode(ctx, space+"-"+node, nodeID(space, node))
	}}
}
