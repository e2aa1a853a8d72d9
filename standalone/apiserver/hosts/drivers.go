package hosts

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/listers/storage/v1"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
)

// drivers knows which drivers are delegated to which nodes.
type drivers struct {
	listers.CSIDriverLister
	synced func() bool
}

func driversOf(inf informers.SharedInformerFactory) drivers {
	all := inf.Storage().V1().CSIDrivers()
	return drivers{all.Lister(), all.Informer().HasSynced}
}

// mayLead says whether any driver for which isOf is true is delegated to a node.
func (d drivers) mayLead(node string, isOf func(driver string) bool) (bool, error) {
	if !d.synced() {
		return false, errStarting
	}
	all, err := d.List(labels.Everything())
	if err != nil {
		return false, err
	}
	for _, one := range all {
		if isOf(one.Name) && volume.IsDelegatedTo(one.Annotations, node) {
			return true, nil
		}
	}
	return false, nil
}

// mayUse says whether an intent log is that of a node's host, or of a driver that is delegated to the node.
func (d drivers) mayUse(node, log string) (bool, error) {
	if !identity.IsOfDriver(log) {
		return log == "" || log == identity.HostIntents(node), nil
	}
	return d.mayLead(node, func(driver string) bool { return identity.DriverIntents(driver) == log })
}
