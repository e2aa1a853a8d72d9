package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// gathering collects the facts about one claim or volume with plain reads.
type gathering struct {
	client kubernetes.Interface
	facts  why.Facts
}

// claimFacts returns the facts about a claim, which need not exist.
func claimFacts(ctx context.Context, client kubernetes.Interface, ns, claim string) (why.Facts, error) {
	g := gathering{client: client, facts: why.Facts{Namespace: ns, ClaimName: claim}}
	var err error
	if g.facts.Claim, err = found(client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, claim, metav1.GetOptions{})); err != nil {
		return g.facts, fmt.Errorf("get claim %s: %w", claim, err)
	}
	if c := g.facts.Claim; c != nil && c.Spec.VolumeName != "" {
		if err := g.volume(ctx, c.Spec.VolumeName); err != nil {
			return g.facts, err
		}
	}
	return g.facts, g.around(ctx)
}

// volumeFacts returns the facts about a volume and the claim it belongs to.
func volumeFacts(ctx context.Context, client kubernetes.Interface, name string) (why.Facts, error) {
	g := gathering{client: client}
	if err := g.volume(ctx, name); err != nil {
		return g.facts, err
	}
	if v := g.facts.Volume; v != nil && v.Spec.ClaimRef != nil && v.Status.Phase == corev1.VolumeBound {
		return claimFacts(ctx, client, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
	}
	return g.facts, g.around(ctx)
}

func (g *gathering) volume(ctx context.Context, name string) error {
	var err error
	if g.facts.Volume, err = found(g.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})); err != nil {
		return fmt.Errorf("get volume %s: %w", name, err)
	}
	all, err := g.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list attachments: %w", err)
	}
	for _, a := range all.Items {
		if n := a.Spec.Source.PersistentVolumeName; n != nil && *n == name {
			g.facts.Attachments = append(g.facts.Attachments, a)
		}
	}
	return nil
}

// around reads what the claim and the volume refer to.
func (g *gathering) around(ctx context.Context) error {
	for _, read := range []func(context.Context) error{g.classes, g.driver, g.pods, g.nodes, g.warnings} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (g *gathering) classes(ctx context.Context) error {
	list, err := g.client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list classes: %w", err)
	}
	wanted := ""
	switch c := g.facts.Claim; {
	case c != nil && c.Annotations[volume.AnnBetaStorageClass] != "":
		wanted = c.Annotations[volume.AnnBetaStorageClass]
	case c != nil && c.Spec.StorageClassName != nil:
		wanted = *c.Spec.StorageClassName
	case g.facts.Volume != nil:
		wanted = g.facts.Volume.Spec.StorageClassName
	}
	for i := range list.Items {
		class := &list.Items[i]
		if class.Annotations[volume.AnnDefaultClass] == "true" || class.Annotations[volume.AnnBetaDefaultClass] == "true" {
			g.facts.DefaultClass = class.Name
		}
		if class.Name == wanted {
			g.facts.Class = class
		}
	}
	return nil
}

func (g *gathering) driver(ctx context.Context) error {
	name := ""
	switch {
	case g.facts.Volume != nil && g.facts.Volume.Spec.CSI != nil:
		name = g.facts.Volume.Spec.CSI.Driver
	case g.facts.Class != nil && g.facts.Class.Provisioner != volume.NoProvisioner:
		name = g.facts.Class.Provisioner
	}
	if name == "" {
		return nil
	}
	var err error
	if g.facts.Driver, err = found(g.client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})); err != nil {
		return fmt.Errorf("get driver %s: %w", name, err)
	}
	return nil
}

func (g *gathering) pods(ctx context.Context) error {
	if g.facts.ClaimName == "" {
		return nil
	}
	list, err := g.client.CoreV1().Pods(g.facts.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range list.Items {
		if slices.Contains(kube.ClaimNames(&list.Items[i]), g.facts.ClaimName) {
			g.facts.Pods = append(g.facts.Pods, list.Items[i])
		}
	}
	return nil
}

func (g *gathering) nodes(ctx context.Context) error {
	nodes, err := g.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	csiNodes, err := g.client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list CSINodes: %w", err)
	}
	g.facts.Nodes, g.facts.CSINodes = nodes.Items, csiNodes.Items
	return nil
}

// warnings reads the warnings of the claim's namespace, and those about
// volumes, which the API keeps in namespace default.
func (g *gathering) warnings(ctx context.Context) error {
	spaces := []string{metav1.NamespaceDefault}
	if ns := g.facts.Namespace; ns != "" && ns != metav1.NamespaceDefault {
		spaces = append(spaces, ns)
	}
	for _, ns := range spaces {
		list, err := g.client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
		if err != nil {
			return fmt.Errorf("list events: %w", err)
		}
		for i := range list.Items {
			if g.concerns(&list.Items[i]) {
				g.facts.Warnings = append(g.facts.Warnings, list.Items[i])
			}
		}
	}
	slices.SortStableFunc(g.facts.Warnings, func(a, b corev1.Event) int { return seen(&a).Compare(seen(&b)) })
	return nil
}

// concerns says whether the event is about one of the objects as they are now,
// not about an earlier one of the same name.
func (g *gathering) concerns(e *corev1.Event) bool {
	uid := e.InvolvedObject.UID
	if c := g.facts.Claim; c != nil && c.UID == uid {
		return true
	}
	if v := g.facts.Volume; v != nil && v.UID == uid {
		return true
	}
	return slices.ContainsFunc(g.facts.Pods, func(p corev1.Pod) bool { return p.UID == uid })
}

func seen(e *corev1.Event) time.Time {
	return cmp.Or(e.LastTimestamp.Time, e.EventTime.Time, e.CreationTimestamp.Time)
}

// found turns "not found" into nil.
func found[T any](o *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}
