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

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/migrate"
	"volplane.dev/volplane/internal/volume"
)

// reading collects the objects that an explanation needs with plain reads.
type reading struct {
	client kubernetes.Interface
	why.Objects
}

// readAll reads everything of one namespace, or of all when ns is empty, with
// the volumes and nodes of the cluster.
func readAll(ctx context.Context, client kubernetes.Interface, ns string) (why.Objects, error) {
	r := reading{client: client}
	err := in(ctx, r.claims(ns, ""), r.volumes(""), r.attachments, r.pods(ns), r.cluster, r.flex, r.making(ns), r.moves, r.room, r.warnings(ns), r.leases)
	return r.Objects, err
}

// readClaim reads what concerns one claim.
func readClaim(ctx context.Context, client kubernetes.Interface, ns, name string) (why.Objects, error) {
	r := reading{client: client}
	if err := in(ctx, r.claims(ns, name)); err != nil {
		return r.Objects, err
	}
	var volumes []read
	for _, c := range r.Claims {
		if c.Spec.VolumeName != "" {
			volumes = append(volumes, r.volumes(c.Spec.VolumeName))
		}
	}
	err := in(ctx, append(volumes, r.attachments, r.pods(ns), r.cluster, r.flex, r.making(ns), r.moves, r.warnings(ns), r.leases)...)
	return r.Objects, err
}

// readVolume reads what concerns one volume.
func readVolume(ctx context.Context, client kubernetes.Interface, name string) (why.Objects, error) {
	r := reading{client: client}
	if err := in(ctx, r.volumes(name)); err != nil {
		return r.Objects, err
	}
	for _, v := range r.Volumes {
		ref := v.Spec.ClaimRef
		if ref != nil && v.Status.Phase == corev1.VolumeBound {
			return readClaim(ctx, client, ref.Namespace, ref.Name)
		}
		if ref != nil {
			// A claim that is there all the same is why it is not deleted.
			if err := in(ctx, r.claims(ref.Namespace, ref.Name)); err != nil {
				return r.Objects, err
			}
		}
	}
	err := in(ctx, r.attachments, r.cluster, r.flex, r.moves, r.warnings(metav1.NamespaceDefault), r.leases)
	return r.Objects, err
}

// read adds some objects to a reading.
type read func(context.Context) error

func in(ctx context.Context, reads ...read) error {
	for _, r := range reads {
		if err := r(ctx); err != nil {
			return err
		}
	}
	return nil
}

// named selects one object, or all when name is empty.
func named(name string) metav1.ListOptions {
	if name == "" {
		return metav1.ListOptions{}
	}
	return metav1.ListOptions{FieldSelector: "metadata.name=" + name}
}

func (r *reading) claims(ns, name string) read {
	return func(ctx context.Context) error {
		list, err := r.client.CoreV1().PersistentVolumeClaims(ns).List(ctx, named(name))
		if err != nil {
			return fmt.Errorf("list claims: %w", err)
		}
		r.Claims = kube.Pointers(list.Items)
		return nil
	}
}

func (r *reading) volumes(name string) read {
	return func(ctx context.Context) error {
		list, err := r.client.CoreV1().PersistentVolumes().List(ctx, named(name))
		if err != nil {
			return fmt.Errorf("list volumes: %w", err)
		}
		r.Volumes = kube.Pointers(list.Items)
		return nil
	}
}

func (r *reading) attachments(ctx context.Context) error {
	list, err := r.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list attachments: %w", err)
	}
	r.Attachments = kube.Pointers(list.Items)
	return nil
}

func (r *reading) pods(ns string) read {
	return func(ctx context.Context) error {
		list, err := r.client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		r.Pods = kube.Pointers(list.Items)
		return nil
	}
}

// cluster reads what has no namespace and is not many.
func (r *reading) cluster(ctx context.Context) error {
	classes, err := r.client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list classes: %w", err)
	}
	drivers, err := r.client.StorageV1().CSIDrivers().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list drivers: %w", err)
	}
	nodes, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	csiNodes, err := r.client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list CSINodes: %w", err)
	}
	r.Classes, r.Drivers = kube.Pointers(classes.Items), kube.Pointers(drivers.Items)
	r.Nodes, r.CSINodes = kube.Pointers(nodes.Items), kube.Pointers(csiNodes.Items)
	return nil
}

// flex takes FlexVolumes for what a control plane with a bridge takes them for.
// In a cluster whose own controllers serve them nobody says that there is one.
func (r *reading) flex(context.Context) error {
	if !slices.ContainsFunc(r.Nodes, func(n *corev1.Node) bool { return n.Annotations[volume.AnnFlexDrivers] != "" }) {
		return nil
	}
	t := app.FlexTranslation()
	for _, v := range r.Volumes {
		t.Show(v)
	}
	for _, p := range r.Pods {
		t.Show(p)
	}
	return nil
}

// making reads for which claims provisioners have begun, in whatever namespace
// each keeps that. Who may not read it is told the rest.
func (r *reading) making(ns string) read {
	return func(ctx context.Context) error { return r.begun(ctx, ns) }
}

func (r *reading) begun(ctx context.Context, ns string) error {
	logs, err := r.client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: volume.LabelIntents})
	if apierrors.IsForbidden(err) {
		r.MakingHidden = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("list intents: %w", err)
	}
	r.Now = time.Now()
	for i := range logs.Items {
		for _, text := range logs.Items[i].Data {
			if in, err := provision.ParseIntent(text); err == nil && (ns == metav1.NamespaceAll || ns == in.Claim.Namespace) {
				r.Begun = append(r.Begun, in)
			}
		}
	}
	return nil
}

// leases reads which programs live. Sidecars have theirs in any namespace. Who may
// not read them is told the rest.
func (r *reading) leases(ctx context.Context) error {
	list, err := r.client.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		r.LeasesHidden = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	r.Leases, r.Now = kube.Pointers(list.Items), time.Now()
	return nil
}

// room reads whether the control plane has room for new objects.
func (r *reading) room(ctx context.Context) error {
	if told, ok := readRoom(ctx, r.client); ok && told.Refuses {
		r.Full = &volume.Because{Reason: volume.Reason(told.Reason), Message: told.Message, Next: told.Next}
	}
	return nil
}

// moves reads which volumes are being moved. Who may not read it is told the rest.
func (r *reading) moves(ctx context.Context) error {
	journals, err := migrate.Begun(ctx, r.client)
	if apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for name, j := range journals {
		if j.Done {
			continue
		}
		m := why.Move{Volume: name, Back: j.Back}
		if j.Claim != nil {
			m.Claim = j.Claim.Namespace + "/" + j.Claim.Name
		}
		r.Moves = append(r.Moves, m)
	}
	return nil
}

// warnings reads the warnings of a namespace, and those about volumes, which
// the API keeps in namespace default.
func (r *reading) warnings(ns string) read {
	spaces := []string{metav1.NamespaceDefault}
	switch ns {
	case metav1.NamespaceAll:
		spaces = []string{metav1.NamespaceAll}
	case metav1.NamespaceDefault:
	default:
		spaces = append(spaces, ns)
	}
	return func(ctx context.Context) error {
		for _, ns := range spaces {
			list, err := r.client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
			if err != nil {
				return fmt.Errorf("list events: %w", err)
			}
			r.Warnings = append(r.Warnings, kube.Pointers(list.Items)...)
		}
		slices.SortStableFunc(r.Warnings, func(a, b *corev1.Event) int { return seen(a).Compare(seen(b)) })
		return nil
	}
}

func seen(e *corev1.Event) time.Time {
	return cmp.Or(e.LastTimestamp.Time, e.EventTime.Time, e.CreationTimestamp.Time)
}
