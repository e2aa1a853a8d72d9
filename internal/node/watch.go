package node

import (
	"cmp"
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// watch enqueues the volumes and Pods that a change concerns.
func (a *Agent) watch() {
	a.Caches.Pods().Watch(a.podChanged)
	a.Caches.Claims().Watch(func(before, after *corev1.PersistentVolumeClaim) {
		c := cmp.Or(after, before)
		for _, pod := range a.Caches.Pods().By(cluster.PodsByClaim, cluster.Key(c)) {
			a.addPod(pod)
		}
	})
	a.Caches.Volumes().Watch(func(before, after *corev1.PersistentVolume) {
		for _, pv := range []*corev1.PersistentVolume{before, after} {
			if pv == nil || pv.Spec.CSI == nil || pv.Spec.ClaimRef == nil {
				continue
			}
			for _, pod := range a.Caches.Pods().By(cluster.PodsByClaim, pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name) {
				a.addPod(pod)
			}
		}
	})
	a.Caches.Nodes().Watch(a.nodeChanged)
	a.Caches.CSIDrivers().Watch(func(before, after *storagev1.CSIDriver) {
		for _, d := range []*storagev1.CSIDriver{before, after} {
			if d != nil {
				a.volumes.AddAll(d.Name)
			}
		}
	})
}

func (a *Agent) podChanged(before, after *corev1.Pod) {
	if before != nil && after != nil && uses.Alive(before) == uses.Alive(after) && before.UID == after.UID &&
		before.Annotations[volume.AnnMountAt] == after.Annotations[volume.AnnMountAt] {
		return
	}
	for _, pod := range []*corev1.Pod{before, after} {
		if pod != nil {
			a.addPod(pod)
		}
	}
}

// addPod enqueues a Pod and all volumes that it wants or has.
func (a *Agent) addPod(pod *corev1.Pod) {
	a.volumes.AddPod(pod)
	a.pods.Add(cluster.Key(pod))
}

// nodeChanged enqueues the volumes that were attached, and lets a deleted Node be created again.
func (a *Agent) nodeChanged(before, after *corev1.Node) {
	a.node.Changed(before, after)
	if after == nil {
		return
	}
	a.notesChanged(before, after)
	if before != nil && !maps.Equal(before.Labels, after.Labels) {
		a.volumes.AddAll("") // some may be usable on this node now
	}
	was := map[corev1.UniqueVolumeName]bool{}
	if before != nil {
		for _, v := range before.Status.VolumesAttached {
			was[v.Name] = true
		}
	}
	for _, v := range after.Status.VolumesAttached {
		if driver, handle, ok := uses.Split(v.Name); ok && !was[v.Name] {
			a.volumes.Add(volume.Key(driver, handle))
		}
	}
}

// notesChanged enqueues the volumes of the drivers whose note on the Node has changed, because it says
// why their Pods wait.
func (a *Agent) notesChanged(before, after *corev1.Node) {
	oldNotes, newNotes := driverstatus.Of(before), driverstatus.Of(after)
	for _, all := range []map[string]string{oldNotes, newNotes} {
		for driver := range all {
			text, known := oldNotes[driver]
			if now, still := newNotes[driver]; known != still || text != now {
				a.volumes.AddAll(driver)
			}
		}
	}
}
