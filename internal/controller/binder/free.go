package binder

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/bind"
)

// free is the set of free volumes. It is safe for concurrent use.
type free struct {
	mu      sync.Mutex
	volumes *bind.Free
}

// set adds a volume if it is free, removes it otherwise, and says whether it is free.
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

// has says whether a volume of the set fits a claim.
func (f *free) has(claim *corev1.PersistentVolumeClaim) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.volumes.Best(claim, nil) != nil
}

// take removes the best volume for a claim and returns its name; "" means that none fits.
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
