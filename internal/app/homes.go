package app

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Homes says for which volumes of each driver a process is the controller.
type Homes func(driver string) (scope volume.Scope, calls bool)

// csiDrivers keeps the CSIDrivers of the cluster, which say where the controllers of a driver run.
type csiDrivers struct {
	cache *kube.Cache[*storagev1.CSIDriver]
}

// readCSIDrivers reads the CSIDrivers, and calls changed with the name of each that changes until ctx ends.
func readCSIDrivers(ctx context.Context, client kubernetes.Interface, changed func(name string)) (csiDrivers, error) {
	caches := kube.NewCaches(client)
	d := csiDrivers{caches.CSIDrivers()}
	d.cache.Watch(func(before, after *storagev1.CSIDriver) {
		if isNodeLocal(before) != isNodeLocal(after) {
			changed(controller.Latest(before, after).Name)
		}
	})
	if err := caches.Start(ctx); err != nil {
		return d, fmt.Errorf("read CSIDrivers: %w", err)
	}
	return d, nil
}

func isNodeLocal(d *storagev1.CSIDriver) bool {
	return d != nil && volume.IsNodeLocal(d.Annotations)
}

func (d csiDrivers) isNodeLocal(name string) bool {
	o, _ := d.cache.Get(name)
	return isNodeLocal(o)
}

// ofControlPlane returns the homes of the drivers that the control plane's process on a node calls: all, but of
// node-local drivers only the volumes of its own node and those that belong to none.
func (d csiDrivers) ofControlPlane(node string) Homes {
	return func(driver string) (volume.Scope, bool) {
		if d.isNodeLocal(driver) {
			return volume.Scope{Node: node, Rest: true}, true
		}
		return volume.Scope{}, true
	}
}

// ofHost returns the homes of the drivers that a host without the control plane calls: node-local ones for the
// volumes of its node.
func (d csiDrivers) ofHost(node string) Homes {
	return func(driver string) (volume.Scope, bool) {
		return volume.Scope{Node: node}, d.isNodeLocal(driver)
	}
}
