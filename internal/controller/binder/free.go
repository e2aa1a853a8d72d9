package binder

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/bind"
)

// free is the set of free volumes, shared by the workers.
type free struct {
	mu      sync.Mutex
	volumes *bind.Free
}

// set puts a volume where it belongs now, and says whether it is free.
func (f *free) set(v *corev1.PersistentVolume) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.volumes.Set(v)
	return bind.IsFree(v)
}

func (f *free) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.volumes.Remove(name)
}

// has says whether there is a volume for the claim.
func (f *free) has(claim *corev1.PersistentVolumeClaim) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.volumes.Best(claim, nil) != nil
}

// take takes the best volume for the claim out; "" is none.
func (f *free) take(claim *corev1.PersistentVolumeClaim) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.volumes.Best(claim, nil)
	if v == nil {
		return ""
	}
	f.volumes.Remove(v.Name)
	return v.Name
}
