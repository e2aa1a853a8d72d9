package kube

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// memorySheets keep intents for a process that may keep them nowhere else. There is one log in them.
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[sheet.Name] != nil {
		return nil, apierrors.NewAlreadyExists(corev1.Resource("configmaps"), sheet.Name)
	}
	return s.keep(sheet), nil
}

// Update replaces a sheet.
func (s *memorySheets) Update(
	_ context.Context, sheet *corev1.ConfigMap, _ metav1.UpdateOptions,
) (*corev1.ConfigMap, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[sheet.Name] == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), sheet.Name)
	}
	return s.keep(sheet), nil
}

// Delete removes a sheet.
func (s *memorySheets) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[name] == nil {
		return apierrors.NewNotFound(corev1.Resource("configmaps"), name)
	}
	delete(s.all, name)
	return nil
}

func (s *memorySheets) keep(sheet *corev1.ConfigMap) *corev1.ConfigMap {
	s.version++
	kept := sheet.DeepCopy()
	kept.ResourceVersion = fmt.Sprint(s.version)
	s.all[sheet.Name] = kept
	return kept.DeepCopy()
}
