package attaching

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
)

// unwantedMount begins the line of a volume that its node uses and no Pod there wants: volplane immediately removes it
// from the volumes that may be mounted, Kubernetes only when it is about to be detached. A Pod that arrives on the node
// in between finds it attached on both sides.
const unwantedMount = differential.Aside + "without a pod may be mounted: "

// attached adds a line for each attachment, node and Pod.
func attached(ctx context.Context, s side, out state) error {
	pods, err := s.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	// wanted are the claims of Pods, by node.
	wanted := map[string]bool{}
	for i := range pods.Items {
		p := &pods.Items[i]
		var volumes []string
		for _, v := range p.Spec.Volumes {
			if c := v.PersistentVolumeClaim; c != nil && p.Status.Phase != corev1.PodSucceeded &&
				p.Status.Phase != corev1.PodFailed {
				name := strings.Replace(c.ClaimName, "c", "v", 1)
				volumes, wanted[p.Spec.NodeName+"/"+name] = append(volumes, name), true
			}
		}
		out[p.Namespace] = append(out[p.Namespace], fmt.Sprintf("pod %s%s on %s wants %v going=%v", p.Name, renewed(p),
			s.Bare(p.Spec.NodeName), volumes, p.DeletionTimestamp != nil))
	}
	attachments, err := s.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range attachments.Items {
		a := &attachments.Items[i]
		space := s.SpaceOf(a.Spec.NodeName)
		out[space] = append(out[space], attachmentLine(s, a))
	}
	if err := attachRequired(ctx, s, out); err != nil {
		return err
	}
	return nodes(ctx, s, out, wanted)
}

const (
	nowNeedless  = "the driver needs no attaching"
	onceNeedless = "the driver needed no attaching for some time"
	// leftBehind is the prefix of the line of a volume that was attached to a node, where no Pod wanted it, when the
	// driver started to need attaching again.
	leftBehind = "without a pod when the driver needed attaching again: "
)

// noteLeftBehind records attachments that no Pod wants.
func noteLeftBehind(ctx context.Context, s side) error {
	all, err := attachStates(ctx, s)
	for space, lines := range all {
		for _, l := range lines {
			if !strings.HasPrefix(l, "attachment of ") {
				continue
			}
			if v := strings.Fields(l)[2]; !wants(lines, nodeOf(l), v) {
				s.Memory.Keep(space, leftBehind+v+" on "+nodeOf(l))
			}
		}
	}
	return err
}

// attachRequired adds a line to each sequence when the driver has said whether it
// needs attaching.
func attachRequired(ctx context.Context, s side, out state) error {
	d, err := s.Client.StorageV1().CSIDrivers().Get(ctx, differential.DriverName, metav1.GetOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return err
	}
	line := onceNeedless
	if !*d.Spec.AttachRequired {
		line = nowNeedless
	}
	for space := range out {
		out[space] = append(out[space], line)
	}
	return nil
}

// renewed marks an object that was recreated.
func renewed(o metav1.Object) string {
	if o.GetAnnotations()[annAnew] != "" {
		return "-anew"
	}
	return ""
}

func attachmentLine(s side, a *storagev1.VolumeAttachment) string {
	v := ptr.Deref(a.Spec.Source.PersistentVolumeName, "")
	name := s.Bare(a.Name)
	if a.Name == attach.NameOf(a.Spec.Attacher, "id-"+v, a.Spec.NodeName) {
		name = "of its own"
	}
	var notes []string
	for _, n := range differential.Annotations(a.Annotations) {
		if !strings.HasPrefix(n, volume.AnnDetach+"=") {
			notes = append(notes, n)
		}
	}
	return fmt.Sprintf("attachment of %s to %s named %s by %s attached=%v metadata=%v attachError=%s detachError=%s "+
		"annotations=%v finalizers=%v going=%v",
		s.Bare(v), s.Bare(a.Spec.NodeName), name, a.Spec.Attacher, a.Status.Attached, a.Status.AttachmentMetadata,
		failure(a.Status.AttachError), failure(a.Status.DetachError), notes, differential.Sorted(a.Finalizers),
		a.DeletionTimestamp != nil)
}

// failure prints a driver's answer unchanged, and for any other error only that it exists: each side has its own words.
func failure(e *storagev1.VolumeError) string {
	if e == nil {
		return "none"
	}
	code := "none"
	if e.ErrorCode != nil {
		code = fmt.Sprint(*e.ErrorCode)
	}
	for _, pattern := range []string{`code = (\w+) desc = (.*)$`, `^(\w+): (.*)$`} {
		if found := regexp.MustCompile(pattern).FindStringSubmatch(e.Message); found != nil && found[1] != "Unknown" {
			return fmt.Sprintf("%q(code %s)", found[1]+": "+found[2], code)
		}
	}
	return "its own(code " + code + ")"
}

// nodes adds a line for each node: what it may mount and what it uses.
func nodes(ctx context.Context, s side, out state, wanted map[string]bool) error {
	csiNodes, err := s.Client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ids := map[string][]string{}
	for i := range csiNodes.Items {
		n := &csiNodes.Items[i]
		ids[n.Name] = []string{}
		for _, d := range n.Spec.Drivers {
			id := d.NodeID
			if d.Allocatable != nil {
				id += fmt.Sprintf(" (takes %d)", ptr.Deref(d.Allocatable.Count, 0))
			}
			ids[n.Name] = append(ids[n.Name], id)
		}
	}
	nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		space, name := s.SpaceOf(n.Name), s.Bare(n.Name)
		var may, uses []string
		for _, v := range n.Status.VolumesInUse {
			uses = append(uses, s.Bare(string(v)))
		}
		for _, v := range n.Status.VolumesAttached {
			if v := s.Bare(string(v.Name)); slices.Contains(uses, v) && !wanted[n.Name+"/"+v] {
				out[space] = append(out[space], unwantedMount+v+" on "+name)
			} else {
				may = append(may, v)
			}
		}
		slices.Sort(may)
		slices.Sort(uses)
		var taints []string
		for _, t := range n.Spec.Taints {
			taints = append(taints, t.Key)
		}
		out[space] = append(out[space],
			fmt.Sprintf("node %s may mount %v uses %v taints %v driver %v%s", name, may, uses, taints, ids[n.Name], renewed(n)))
	}
	return nil
}

// attachStates returns the state of each sequence about volumes and attachments.
func attachStates(ctx context.Context, s side) (state, error) { return s.BoundStates(ctx, attached) }

// attachVersions returns a text that changes with everything that is compared; it omits the times of repeated errors.
func attachVersions(ctx context.Context, s side) (string, error) {
	all, err := attachStates(ctx, s)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(all), nil
}
