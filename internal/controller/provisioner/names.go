package provisioner

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

func nameKey(in *provision.Intent) string { return volume.Key(in.Driver, in.Name) }

// holdName reserves the name of the intent's volume until the intent is resolved. If names are cut, two claims may get
// the same one, for which the driver has one volume: what is done for one of them would be done to the other's.
func (p *provisioner) holdName(in *provision.Intent) error {
	holder, held := p.names.LoadOrStore(nameKey(in), in.Claim.UID)
	if !held || holder == in.Claim.UID {
		return nil
	}
	p.Events.WarnWith(&in.Claim, provision.NameHeld(in), p.try(in).Notes())
	return fmt.Errorf("%w: %s", errNameHeld, in.Name)
}

// holdHandle reserves a handle for the intent's volume until release is called. It returns the name
// of a volume of another claim that has the handle or is being saved with it, or "".
func (p *provisioner) holdHandle(in *provision.Intent, handle string) (taken string, release func()) {
	key := volume.Key(in.Driver, handle)
	if other, held := p.handles.LoadOrStore(key, in.Name); held {
		return other.(string), func() {}
	}
	release = func() { p.handles.Delete(key) }
	for _, v := range p.volumes.By(cluster.VolumesByHandle, key) {
		if v.Name != in.Name || !provision.Owns(in.Claim.UID, v) {
			return v.Name, release
		}
	}
	return "", release
}

// enqueueSharers queues the other volumes that have a volume's handle: they may wait for it.
func (p *provisioner) enqueueSharers(v *corev1.PersistentVolume) {
	if v.Spec.CSI == nil {
		return
	}
	for _, same := range p.volumes.By(cluster.VolumesByHandle, volume.Key(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)) {
		if same.Name != v.Name {
			p.Add(controller.Key{Kind: kindVolume, Name: same.Name})
		}
	}
}
