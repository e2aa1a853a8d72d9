package apply

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/noderoot"
	"volplane.dev/volplane/internal/volume"
)

// lostStep is the time between two checks of what is left of a lost host.
const lostStep = 300 * time.Millisecond

var errNotConfirmed = errors.New("the name was not repeated: nothing was changed")

// lostFlags are the flags of delete for a host that is lost for good.
type lostFlags struct{ lost, yes, force bool }

// lostNode releases what a host had that is lost for good.
type lostNode struct {
	*objects.Client
	client kubernetes.Interface
	// known is what does not change while the host is given up: what the user wants, and whether it is fenced.
	known nodelife.LostFacts
	last  nodelife.LostPlan
}

// deleteLost gives up the host of a node, after it has said what that means.
func deleteLost(ctx context.Context, s *shell.Shell, d deleteOptions, args []string) error {
	o, err := objects.Of(s)
	if err != nil {
		return err
	}
	name, err := lostName(o, args)
	if err != nil {
		return err
	}
	client, _, err := s.Client()
	if err != nil {
		return err
	}
	ctx, cancel := shell.WithTimeout(ctx, d.timeout)
	defer cancel()
	n := &lostNode{Client: o, client: client, known: nodelife.LostFacts{
		Name: name, Force: d.force,
		Own: s.Flags.Explicit() == s.Flags.Plane() && noderoot.NameOf(noderoot.Of(s.Flags.DataDir)) == name,
	}}
	facts, err := n.gather(ctx)
	if err != nil {
		return err
	}
	if p := nodelife.Lost(facts); p.Refused {
		return errors.New(p.Because.Message)
	}
	fmt.Fprint(s.Out, nodelife.LostReport(facts))
	if !d.yes {
		if err := confirm(s, name); err != nil {
			return err
		}
	}
	err = shell.Progress(ctx, s.Err, func(context.Context) string { return "waiting: " + n.waits() }, n.giveUp)
	if err != nil {
		return fmt.Errorf("node %s is not completely removed: %w; run the command again to continue", name, err)
	}
	fmt.Fprintf(s.Out, "node/%s is given up\n", name)
	return nil
}

// lostName returns the name of the node that a command line gives.
func lostName(o *objects.Client, args []string) (string, error) {
	targets, err := o.Targets(args)
	if err != nil {
		return "", err
	}
	if len(targets) != 1 || len(targets[0].Names) != 1 || targets[0].Mapping.Resource.Resource != "nodes" {
		return "", errors.New("--lost is for one node: volplane delete node NAME --lost")
	}
	return targets[0].Names[0], nil
}

// confirm asks for a name again.
func confirm(s *shell.Shell, name string) error {
	fmt.Fprintf(s.Out, "Type the name of the node to give it up: ")
	said, err := bufio.NewReader(io.LimitReader(s.In, 1<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the name: %w", err)
	}
	if strings.TrimSpace(said) != name {
		return errNotConfirmed
	}
	return nil
}

func (n *lostNode) waits() string { return n.last.Because.Message }

// giveUp does one step after the other until nothing is left.
func (n *lostNode) giveUp(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, lostStep, true, func(ctx context.Context) (bool, error) {
		facts, err := n.gather(ctx)
		if err != nil {
			return false, err
		}
		n.last = nodelife.Lost(facts)
		if n.last.Refused {
			return false, errors.New(n.last.Because.Message)
		}
		return n.last.Done, n.apply(ctx, n.last)
	})
}

// gather reads everything that a lost host may have.
func (n *lostNode) gather(ctx context.Context) (f nodelife.LostFacts, err error) {
	f = n.known
	f.Local = map[string]bool{}
	core, storage, all := n.client.CoreV1(), n.client.StorageV1(), metav1.ListOptions{}
	nodes, err := gather.Every[*corev1.Node](ctx, "nodes", all, core.Nodes().List)
	if err != nil {
		return f, err
	}
	for _, node := range nodes {
		if node.Name == n.known.Name {
			f.Node = node
		} else {
			f.Others = append(f.Others, node)
		}
	}
	f.Pods, err = gather.Every[*corev1.Pod](ctx, "pods", metav1.ListOptions{FieldSelector: "spec.nodeName=" + f.Name},
		core.Pods("").List)
	if err != nil {
		return f, err
	}
	f.Volumes, err = gather.Every[*corev1.PersistentVolume](ctx, "volumes", all, core.PersistentVolumes().List)
	if err != nil {
		return f, err
	}
	f.Claims, err = gather.Every[*corev1.PersistentVolumeClaim](ctx, "claims", all, core.PersistentVolumeClaims("").List)
	if err != nil {
		return f, err
	}
	attachments, err := gather.Every[*storagev1.VolumeAttachment](ctx, "attachments", all,
		storage.VolumeAttachments().List)
	if err != nil {
		return f, err
	}
	f.Attachments = state.Only(attachments, func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName == f.Name })
	drivers, err := gather.Every[*storagev1.CSIDriver](ctx, "drivers", all, storage.CSIDrivers().List)
	if err != nil {
		return f, err
	}
	for _, d := range drivers {
		f.Local[d.Name] = volume.IsNodeLocal(d.Annotations)
	}
	logs, err := core.ConfigMaps(volume.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: volume.LabelIntents + "=" + identity.HostIntents(n.known.Name)})
	if err != nil {
		return f, fmt.Errorf("list intents: %w", err)
	}
	for i := range logs.Items {
		f.Intents = append(f.Intents, logs.Items[i].Name)
	}
	f.Contents, err = n.contents(ctx)
	return f, err
}

// contents returns the contents of snapshots and of groups of them, where the cluster has such types.
func (n *lostNode) contents(ctx context.Context) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, kind := range []schema.GroupKind{
		{Group: volume.GroupSnapshot, Kind: "VolumeSnapshotContent"},
		{Group: volume.GroupGroupSnapshot, Kind: "VolumeGroupSnapshotContent"},
	} {
		m, err := n.Mapper.RESTMapping(kind)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find type %s: %w", kind.Kind, err)
		}
		list, err := n.Dynamic.Resource(m.Resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", m.Resource.Resource, err)
		}
		for i := range list.Items {
			out = append(out, &list.Items[i])
		}
	}
	return out, nil
}

// apply does the steps of a plan, in their order.
func (n *lostNode) apply(ctx context.Context, p nodelife.LostPlan) error {
	if p.Fence {
		return n.fence(ctx)
	}
	if p.Taint {
		if err := n.taint(ctx); err != nil {
			return err
		}
	}
	if err := n.mark(ctx, p); err != nil {
		return err
	}
	gone := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	for _, pod := range p.Pods {
		gone.Preconditions = &metav1.Preconditions{UID: &pod.UID}
		if err := n.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, gone); !passed(err) {
			return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	for _, name := range p.Forget {
		err := n.client.CoreV1().ConfigMaps(volume.NamespaceSystem).Delete(ctx, name, metav1.DeleteOptions{})
		if kube.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the intents in %s: %w", name, err)
		}
	}
	if !p.Remove {
		return nil
	}
	err := n.client.CoreV1().Nodes().Delete(ctx, n.known.Name, metav1.DeleteOptions{})
	return kube.IgnoreNotFound(err)
}

// fence revokes the identity of the host. An API server that has no such identities is that of a cluster.
func (n *lostNode) fence(ctx context.Context) error {
	body, err := json.Marshal(identity.Revoke{Node: n.known.Name, Lost: true})
	if err != nil {
		return err
	}
	said, err := n.client.Discovery().RESTClient().Post().AbsPath(identity.PathRevocation).SetHeader("Content-Type",
		"application/json").Body(body).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		n.known.Unfenceable = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("revoke the identity of node %s: %w: %s", n.known.Name, err, bytes.TrimSpace(said))
	}
	n.known.Fenced = true
	return nil
}

// taint says that the node is out of service.
func (n *lostNode) taint(ctx context.Context) error {
	node, err := n.client.CoreV1().Nodes().Get(ctx, n.known.Name, metav1.GetOptions{})
	if err != nil {
		return kube.IgnoreNotFound(err)
	}
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{
		Key: corev1.TaintNodeOutOfService, Value: "lost", Effect: corev1.TaintEffectNoExecute,
	})
	_, err = n.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{FieldManager: doors.FieldManager})
	if passed(err) {
		return nil
	}
	return fmt.Errorf("taint node %s: %w", n.known.Name, err)
}

// mark writes to what was lost with which node it was, and takes the node from claims that wait for it.
func (n *lostNode) mark(ctx context.Context, p nodelife.LostPlan) error {
	lost := map[string]any{volume.AnnLostWith: n.known.Name}
	free := map[string]any{volume.AnnSelectedNode: nil, volume.AnnAlphaSelectedNode: nil}
	var all []error
	for _, c := range p.Contents {
		all = append(all, n.annotate(ctx, c.GroupVersionKind().GroupKind(), c, lost))
	}
	for _, v := range p.Volumes {
		all = append(all, n.annotate(ctx, schema.GroupKind{Kind: "PersistentVolume"}, v, lost))
	}
	for _, a := range p.Attachments {
		all = append(all, n.annotate(ctx, schema.GroupKind{Group: storagev1.GroupName, Kind: "VolumeAttachment"}, a, lost))
	}
	for _, c := range p.Reselect {
		all = append(all, n.annotate(ctx, schema.GroupKind{Kind: "PersistentVolumeClaim"}, c, free))
	}
	return errors.Join(all...)
}

// annotate writes annotations to an object, unless it has changed since it was read.
func (n *lostNode) annotate(ctx context.Context, kind schema.GroupKind, o metav1.Object, notes map[string]any) error {
	m, err := n.Mapper.RESTMapping(kind)
	if err != nil {
		return fmt.Errorf("find type %s: %w", kind.Kind, err)
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion(), "annotations": notes,
	}})
	if err != nil {
		return err
	}
	_, err = n.Dynamic.Resource(m.Resource).Namespace(o.GetNamespace()).Patch(ctx, o.GetName(), types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: doors.FieldManager})
	if !passed(err) {
		return fmt.Errorf("annotate %s %s: %w", kind.Kind, o.GetName(), err)
	}
	return nil
}

// passed says whether a write is done with: it has succeeded, or the next step decides again, because the object has
// changed.
func passed(err error) bool {
	return err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err)
}
