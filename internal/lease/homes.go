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

// Home says for which volumes of a driver a process is the controller.
type Home struct {
	Scope volume.Scope
	// Shared says that other processes of this control plane may call the driver for the same volumes.
	Shared bool
}

// Homes returns the home of a driver; false if the process does not call it.
type Homes func(driver string) (home Home, calls bool)

// csiDrivers keeps the CSIDrivers of the cluster, which say where the controllers of a driver run.
type csiDrivers struct {
	cache *kube.Cache[*storagev1.CSIDriver]
}

// readCSIDrivers reads the CSIDrivers, and calls changed with the name of each that changes until ctx ends.
func readCSIDrivers(ctx context.Context, client kubernetes.Interface, changed func(name string)) (csiDrivers, error) {
	caches := kube.NewCaches(client)
	d := csiDrivers{caches.CSIDrivers()}
	d.cache.Watch(func(before, after *storagev1.CSIDriver) {
		if controllersOf(before) != controllersOf(after) {
			changed(controller.Latest(before, after).Name)
		}
	})
	if err := caches.Start(ctx); err != nil {
		return d, fmt.Errorf("read CSIDrivers: %w", err)
	}
	return d, nil
}

// controllersOf returns where the controllers of a driver run, as its object says it.
func controllersOf(d *storagev1.CSIDriver) string {
	if d == nil {
		return ""
	}
	return d.Annotations[volume.AnnControllers]
}

// annotations returns those of a driver's object, if there is one.
func (d csiDrivers) annotations(name string) map[string]string {
	if o, ok := d.cache.Get(name); ok {
		return o.Annotations
	}
	return nil
}

// ofControlPlane returns the homes of the drivers that a control plane calls: all, but of node-local drivers only the
// volumes of a scope. Unless it is alone, other control planes may call the others for the same volumes.
func (d csiDrivers) ofControlPlane(scope volume.Scope, alone bool) Homes {
	return func(driver string) (Home, bool) {
		said := d.annotations(driver)
		if volume.IsNodeLocal(said) {
			return Home{Scope: scope}, true
		}
		return Home{Shared: !alone || len(volume.DelegatedTo(said)) > 0}, true
	}
}

// ofHost returns the homes of the drivers that a host without the control plane calls: node-local ones for the
// volumes of its node, and those that are delegated to it for all volumes.
func (d csiDrivers) ofHost(node string) Homes {
	return func(driver string) (Home, bool) {
		said := d.annotations(driver)
		if volume.IsNodeLocal(said) {
			return Home{Scope: volume.Scope{Node: node}}, true
		}
		return Home{Shared: true}, volume.IsDelegatedTo(said, node)
	}
}
