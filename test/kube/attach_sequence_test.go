package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// nodesOfOne is how many nodes a sequence has at most.
	nodesOfOne = 2
	// otherID ends the id that a node has after its driver was registered anew.
	otherID = "-anew"
)

func nodeName(n int) string { return fmt.Sprint("n", n) }

// nodeID returns the driver's name of a node, the same in all games.
func nodeID(space, node string) string {
	_, sequence, _ := strings.Cut(space, "-")
	return "id-" + sequence + "-" + node
}

// drawAttaching draws what users, kubelets and drivers do around volumes that
// are attached to nodes.
func drawAttaching(seed uint64, length int) sequence {
	d := &dice{Rand: newRand(seed)}
	s := sequence{seed: seed, ops: []op{makeNode("n0"), makeNode("n1"), d.newSecret("s0"), d.newWiredVolume()}}
	if d.IntN(3) == 0 {
		s.ops = append(s.ops, d.attachFault("ControllerPublishVolume"))
	}
	if d.IntN(5) == 0 {
		s.ops = append(s.ops, registerDriver("n0", "", 1), d.newWiredVolume())
	}
	for len(s.ops) < length+5 {
		s.ops = append(s.ops, d.attachingOp())
	}
	s.switchAttaching()
	return s
}

// switchAttaching has the driver, which all sequences of a batch have in common,
// say for some steps that it needs no attaching: in every fourth batch, in which
// controllers are not started anew.
func (s sequence) switchAttaching() {
	block := s.seed / batch
	if block%4 != 1 {
		return
	}
	r := newRand(block)
	off := 5 + r.IntN(length/2)
	s.ops[off].restart, s.ops[off+2+r.IntN(3)].restart = withoutAttach, withAttach
}

func (d *dice) attachingOp() op {
	return d.oneOf([]weighted{
		{9, d.newUser},
		{4, d.newWiredVolume},
		{5, func() op { return deletePod(d.user()) }},
		{2, func() op { return terminatePod(d.user(), d.IntN(4) > 0) }},
		{1, func() op { return finishPod(d.user(), pick(d, corev1.PodSucceeded, corev1.PodFailed)) }},
		{2, func() op { return movePod(d.user(), d.anyNode()) }},
		{5, func() op { return mountAll(d.anyNode()) }},
		{4, func() op { return unmountAll(d.anyNode()) }},
		{2, func() op { return taint(d.anyNode(), d.IntN(2) == 0) }},
		{1, func() op { return notReady(d.anyNode(), pick(d, corev1.ConditionTrue, corev1.ConditionUnknown)) }},
		{1, func() op { return deleteNode(d.anyNode()) }},
		{2, func() op { return makeNode(d.anyNode()) }},
		{1, func() op { return replaceNode(d.anyNode()) }},
		{2, func() op { return d.changeCSINode(d.anyNode()) }},
		{1, func() op { return attachByHand(d.volume(), d.anyNode(), d.IntN(2) == 0) }},
		{2, func() op { return detachByHand(d.volume(), d.anyNode(), d.IntN(3) > 0) }},
		{1, func() op { return forceDetach(d.volume(), d.anyNode()) }},
		{3, func() op { return d.attachFault("ControllerPublishVolume") }},
		{2, func() op { return d.attachFault("ControllerUnpublishVolume") }},
		{3, func() op { return heal(d.Int()) }},
		{1, func() op { return deleteVolume(d.volume()) }},
		{1, func() op { return loseVolume(d.volume()) }},
		{1, func() op { return replaceVolume(d.volume()) }},
		{1, func() op { return deleteClaim(strings.Replace(d.volume(), "v", "c", 1)) }},
		{1, d.changeSecret},
		{1, disturb},
	})
}

// weighted is an operation that is drawn with this weight.
type weighted struct {
	often int
	draw  func() op
}

func (d *dice) oneOf(all []weighted) op {
	sum := 0
	for _, a := range all {
		sum += a.often
	}
	n := d.IntN(sum)
	for _, a := range all {
		if n -= a.often; n < 0 {
			return a.draw()
		}
	}
	panic("the weights have another sum")
}

func (d *dice) anyNode() string { return nodeName(d.IntN(nodesOfOne)) }
func (d *dice) user() string    { return fmt.Sprint("p", d.IntN(d.pods+1)) }

// newWiredVolume makes a volume and the claim that has it.
func (d *dice) newWiredVolume() op {
	modes := pick(d, corev1.ReadWriteOnce, corev1.ReadWriteOnce, corev1.ReadWriteOnce, corev1.ReadWriteMany,
		corev1.ReadOnlyMany, corev1.ReadWriteOncePod)
	v := csiVolume("",
		pick(d, driverName, driverName, driverName, driverName, driverName, driverName, driverName, needless), modes)
	v.Spec.VolumeMode, v.Spec.CSI.FSType, v.Spec.CSI.ReadOnly = d.volumeMode(), pick(d, "", "xfs"), d.IntN(6) == 0
	if d.IntN(6) == 0 {
		v.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Name: pick(d, "s0", "s1")}
	}
	name := fmt.Sprint(d.volumes)
	d.volumes++
	text := fmt.Sprintf("make volume v%s of %s with claim c%s: %v read only %v secret %v", name, v.Spec.CSI.Driver, name,
		v.Spec.AccessModes, v.Spec.CSI.ReadOnly, v.Spec.CSI.ControllerPublishSecretRef)
	return op{text: text, do: func(ctx context.Context, s side, space string) error {
		v := v.DeepCopy()
		v.Name = space + "-v" + name
		if v.Spec.CSI.ControllerPublishSecretRef != nil {
			v.Spec.CSI.ControllerPublishSecretRef.Namespace = space
		}
		return s.wire(ctx, space, "c"+name, v)
	}}
}

// newUser makes a Pod that uses one claim, or two.
func (d *dice) newUser() op {
	name, node := fmt.Sprint("p", d.pods), d.anyNode()
	d.pods++
	claims := []string{fmt.Sprint("c", d.IntN(d.volumes))}
	if other := fmt.Sprint("c", d.IntN(d.volumes)); d.IntN(4) == 0 && other != claims[0] {
		claims = append(claims, other)
	}
	return op{
		text: fmt.Sprintf("make pod %s on %s with claims %v", name, node, claims),
		do: func(ctx context.Context, s side, space string) error {
			return s.makePod(ctx, space, name, space+"-"+node, claims...)
		},
	}
}

func terminatePod(name string, runs bool) op {
	return op{
		text: fmt.Sprintf("ask for the end of pod %s, whose container runs: %v", name, runs),
		do: func(ctx context.Context, s side, space string) error {
			if runs {
				running := []byte(`{"status":{"containerStatuses":[{"name":"c","image":"none","imageID":"none","ready":true,"restartCount":0,"state":{"running":{}}}]}}`)
				if _, err := s.client.CoreV1().Pods(space).Patch(ctx, name, types.MergePatchType, running, metav1.PatchOptions{},
					"status"); err != nil {
					return err
				}
			}
			return s.client.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{})
		},
	}
}

func finishPod(name string, phase corev1.PodPhase) op {
	return op{
		text: fmt.Sprintf("let pod %s end as %s", name, phase),
		do: func(ctx context.Context, s side, space string) error {
			_, err := s.client.CoreV1().Pods(space).Patch(ctx, name, types.MergePatchType,
				fmt.Appendf(nil, `{"status":{"phase":%q}}`, phase), metav1.PatchOptions{}, "status")
			return err
		},
	}
}

// mountAll does what a kubelet does with what it may mount; what it uses already
// stays.
func mountAll(node string) op {
	return op{text: "let " + node + " use what it may mount", do: func(ctx context.Context, s side, space string) error {
		n, err := s.client.CoreV1().Nodes().Get(ctx, space+"-"+node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		all := n.Status.VolumesInUse
		for _, v := range n.Status.VolumesAttached {
			if !slices.Contains(all, v.Name) {
				all = append(all, v.Name)
			}
		}
		return s.uses(ctx, n.Name, all...)
	}}
}

func unmountAll(node string) op {
	return op{text: "let " + node + " use nothing", do: func(ctx context.Context, s side, space string) error {
		return s.uses(ctx, space+"-"+node)
	}}
}

func taint(node string, out bool) op {
	text, taints := "take the taints from "+node, "null"
	if out {
		text, taints = "taint "+node+" as out of service", `[{"key":"`+corev1.TaintNodeOutOfService+`","effect":"NoExecute"}]`
	}
	return op{text: text, do: func(ctx context.Context, s side, space string) error {
		_, err := s.client.CoreV1().Nodes().Patch(ctx, space+"-"+node, types.MergePatchType,
			[]byte(`{"spec":{"taints":`+taints+`}}`), metav1.PatchOptions{})
		return err
	}}
}

func notReady(node string, ready corev1.ConditionStatus) op {
	return op{
		text: "let the readiness of " + node + " be " + string(ready),
		do: func(ctx context.Context, s side, space string) error {
			return s.nodeStatus(ctx, space+"-"+node,
				map[string]any{"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}})
		},
	}
}

func deleteNode(node string) op {
	return op{text: "delete " + node, do: func(ctx context.Context, s side, space string) error {
		return s.client.CoreV1().Nodes().Delete(ctx, space+"-"+node, metav1.DeleteOptions{})
	}}
}

func makeNode(node string) op {
	return op{text: "make " + node, do: func(ctx context.Context, s side, space string) error {
		return s.makeNode(ctx, space+"-"+node, nodeID(space, node))
	}}
}

// loseVolume deletes a volume whatever keeps it.
func loseVolume(v string) op {
	return op{
		text: "delete volume " + v + " with all its finalizers",
		do: func(ctx context.Context, s side, space string) error {
			if err := s.client.CoreV1().PersistentVolumes().Delete(ctx, space+"-"+v, metav1.DeleteOptions{}); err != nil {
				return err
			}
			// One that a controller lets go at the same moment is a conflict: it is
			// not the whole that is repeated, which might find nothing any more.
			return unmet(func() error {
				_, err := s.client.CoreV1().PersistentVolumes().Patch(ctx, space+"-"+v, types.MergePatchType,
					[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				return err
			})
		},
	}
}

func (d *dice) attachFault(method string) op {
	f := fault{times: pick(d, 1, 2, 0), code: pick(d, codes.Internal, codes.Internal, codes.ResourceExhausted,
		codes.FailedPrecondition, codes.InvalidArgument,
		codes.NotFound, codes.AlreadyExists, codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled)}
	if f.code == codes.Unavailable || f.code == codes.DeadlineExceeded {
		f.after = d.IntN(2) == 0
	}
	return failing(method, f)
}

// failing has calls of a method fail from now on.
func failing(method string, f fault) op {
	text := fmt.Sprintf("let the driver answer %s with %s, %d times a volume (0 is always), done nevertheless: %v", method,
		f.code, f.times, f.after)
	return op{text: text, do: func(_ context.Context, s side, space string) error {
		s.storage.fail(space, method, f)
		return nil
	}}
}
