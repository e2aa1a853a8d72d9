package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"volplane.dev/volplane/internal/volume"
)

// sheets are the objects in which intent logs are kept, whatever their kind is. Each is shown as a ConfigMap.
type sheets interface {
	List(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error)
	Create(ctx context.Context, sheet *corev1.ConfigMap, o metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, sheet *corev1.ConfigMap, o metav1.UpdateOptions) (*corev1.ConfigMap, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// sheets returns the objects of a place.
func (p LogPlace) sheets(client kubernetes.Interface) sheets {
	switch {
	case p.InMemory:
		return &memorySheets{all: map[string]*corev1.ConfigMap{}}
	case p.InLeases:
		return leaseSheets{client.CoordinationV1().Leases(p.Namespace)}
	}
	return client.CoreV1().ConfigMaps(p.Namespace)
}

// leaseSheets keeps intents in an annotation of Leases, which have no holder. They are the only objects that every one
// of upstream's sidecars has the right to write.
type leaseSheets struct {
	api typedcoordinationv1.LeaseInterface
}

// List returns all sheets that match. Damaged ones are an error: no begun work may be forgotten.
func (s leaseSheets) List(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error) {
	all, err := s.api.List(ctx, o)
	if err != nil {
		return nil, err
	}
	list := &corev1.ConfigMapList{ListMeta: all.ListMeta}
	for i := range all.Items {
		sheet, bad := sheetOf(&all.Items[i])
		if bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		list.Items = append(list.Items, *sheet)
	}
	return list, err
}

// Create makes a sheet.
func (s leaseSheets) Create(
	ctx context.Context, sheet *corev1.ConfigMap, o metav1.CreateOptions,
) (*corev1.ConfigMap, error) {
	return writeSheet(ctx, sheet, o, s.api.Create)
}

// Update replaces a sheet.
func (s leaseSheets) Update(
	ctx context.Context, sheet *corev1.ConfigMap, o metav1.UpdateOptions,
) (*corev1.ConfigMap, error) {
	return writeSheet(ctx, sheet, o, s.api.Update)
}

func writeSheet[O any](
	ctx context.Context, sheet *corev1.ConfigMap, o O,
	write func(context.Context, *coordinationv1.Lease, O) (*coordinationv1.Lease, error),
) (*corev1.ConfigMap, error) {
	lease, err := leaseOf(sheet)
	if err == nil {
		lease, err = write(ctx, lease, o)
	}
	if err != nil {
		return nil, err
	}
	return sheetOf(lease)
}

// Delete removes a sheet.
func (s leaseSheets) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return s.api.Delete(ctx, name, o)
}

func leaseOf(sheet *corev1.ConfigMap) (*coordinationv1.Lease, error) {
	text, err := json.Marshal(sheet.Data)
	if err != nil {
		return nil, fmt.Errorf("encode intents %s: %w", sheet.Name, err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: *sheet.ObjectMeta.DeepCopy()}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, volume.AnnIntents, string(text))
	return lease, nil
}

func sheetOf(lease *coordinationv1.Lease) (*corev1.ConfigMap, error) {
	sheet := &corev1.ConfigMap{ObjectMeta: *lease.ObjectMeta.DeepCopy()}
	if err := json.Unmarshal([]byte(lease.Annotations[volume.AnnIntents]), &sheet.Data); err != nil {
		return nil, fmt.Errorf("the annotation %s of Lease %s/%s cannot be read, which has what was begun: %w",
			volume.AnnIntents, lease.Namespace, lease.Name, err)
	}
	delete(sheet.Annotations, volume.AnnIntents)
	return sheet, nil
}

// ListIntents returns the content of all intent logs of a namespace, by object: logs beside drivers are in Leases,
// others in ConfigMaps. An error may come with a partial result.
func ListIntents(ctx context.Context, client kubernetes.Interface, namespace string) ([]map[string]string, error) {
	var out []map[string]string
	var failed error
	for _, inLeases := range []bool{false, true} {
		list, err := LogPlace{Namespace: namespace, InLeases: inLeases}.sheets(client).List(ctx,
			metav1.ListOptions{LabelSelector: volume.LabelIntents})
		failed = errors.Join(failed, err)
		if list == nil {
			continue
		}
		for i := range list.Items {
			out = append(out, list.Items[i].Data)
		}
	}
	return out, failed
}

// memorySheets keep intents for a process that may keep them nowhere else. They have one writer, so that no two writes
// conflict.
type memorySheets struct {
	mu      sync.Mutex
	version int
	all     map[string]*corev1.ConfigMap
}

// List returns all sheets.
func (s *memorySheets) List(context.Context, metav1.ListOptions) (*corev1.ConfigMapList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &corev1.ConfigMapList{}
	for _, sheet := range s.all {
		list.Items = append(list.Items, *sheet.DeepCopy())
	}
	return list, nil
}

// Create makes a sheet.
func (s *memorySheets) Create(
	_ context.Context, sheet *corev1.ConfigMap, _ metav1.CreateOptions,
) (*corev1.ConfigMap, error) {
	return s.keep(sheet), nil
}

// Update replaces a sheet.
func (s *memorySheets) Update(
	_ context.Context, sheet *corev1.ConfigMap, _ metav1.UpdateOptions,
) (*corev1.ConfigMap, error) {
	return s.keep(sheet), nil
}

// Delete removes a sheet.
func (s *memorySheets) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
	return nil
}

func (s *memorySheets) keep(sheet *corev1.ConfigMap) *corev1.ConfigMap {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	kept := sheet.DeepCopy()
	kept.ResourceVersion = fmt.Sprint(s.version)
	s.all[sheet.Name] = kept
	return kept.DeepCopy()
}
