package migrate

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/migrate"
	"volplane.dev/volplane/internal/volume"
)

// gather reads the facts about one volume from the API server, without a cache: what is saved must
// be complete.
func (m *Migration) gather(ctx context.Context, name string, j *migrate.Journal) (migrate.Facts, error) {
	f := migrate.Facts{Name: name, Journal: j}
	pv, err := m.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if f.Volume, err = ignoreNotFound(pv, err); err != nil {
		return f, fmt.Errorf("read volume %s: %w", name, err)
	}
	known := f.Volume
	if j != nil {
		known = j.Volume
	}
	if known == nil || known.Spec.FlexVolume == nil {
		return f, nil
	}
	if ref := known.Spec.ClaimRef; ref != nil {
		claim, err := m.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if f.Claim, err = ignoreNotFound(claim, err); err != nil {
			return f, fmt.Errorf("read claim %s/%s: %w", ref.Namespace, ref.Name, err)
		}
		if f.Pods, err = m.pods(ctx, ref.Namespace, ref.Name); err != nil {
			return f, err
		}
	}
	if f.Nodes, err = m.nodes(ctx, known); err != nil {
		return f, err
	}
	f.Served, err = m.served(ctx, known)
	return f, err
}

// ignoreNotFound returns nil for an object that does not exist.
func ignoreNotFound[T any](o *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}

// pods returns the names of the Pods that use a claim and have not ended.
func (m *Migration) pods(ctx context.Context, ns, claim string) ([]string, error) {
	list, err := m.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the pods of namespace %s: %w", ns, err)
	}
	var out []string
	for i := range list.Items {
		p := &list.Items[i]
		if !cluster.Finished(p) && slices.Contains(cluster.ClaimNames(p), claim) {
			out = append(out, p.Name)
		}
	}
	return out, nil
}

// nodes returns the names of the nodes that a volume is attached to: according to the Node's
// status, where the Flex plugin and the bridge have different names for the volume, or according to
// a VolumeAttachment.
func (m *Migration) nodes(ctx context.Context, pv *corev1.PersistentVolume) ([]string, error) {
	list, err := m.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the nodes: %w", err)
	}
	names := []string{pv.Spec.FlexVolume.Driver + "/" + pv.Name}
	if target, _, err := migrate.Target(pv, nil); err == nil {
		names = append(names, volume.UniqueName(target.Spec.CSI.Driver, target.Spec.CSI.VolumeHandle))
	}
	var out []string
	for i := range list.Items {
		status := &list.Items[i].Status
		uses := slices.ContainsFunc(status.VolumesInUse,
			func(v corev1.UniqueVolumeName) bool { return slices.Contains(names, string(v)) })
		has := slices.ContainsFunc(status.VolumesAttached,
			func(v corev1.AttachedVolume) bool { return slices.Contains(names, string(v.Name)) })
		if uses || has {
			out = append(out, list.Items[i].Name)
		}
	}
	attachments, err := m.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the attachments: %w", err)
	}
	for i := range attachments.Items {
		spec := &attachments.Items[i].Spec
		if spec.Source.PersistentVolumeName != nil && *spec.Source.PersistentVolumeName == pv.Name {
			out = append(out, spec.NodeName)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// served says whether the CSIDriver object exists that a FlexVolume moves to.
func (m *Migration) served(ctx context.Context, pv *corev1.PersistentVolume) (bool, error) {
	made, _, err := migrate.Target(pv, nil)
	if err != nil {
		return false, nil //nolint:nilerr // the decision has the same error and reports it
	}
	driver, err := m.Client.StorageV1().CSIDrivers().Get(ctx, made.Spec.CSI.Driver, metav1.GetOptions{})
	if driver, err = ignoreNotFound(driver, err); err != nil {
		return false, fmt.Errorf("read CSIDriver %s: %w", made.Spec.CSI.Driver, err)
	}
	return driver != nil, nil
}
