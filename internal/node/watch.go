package node

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/note"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// watch has everything looked at that a change concerns.
func (a *Agent) watch() {
	a.Caches.Pods().Watch(a.podChanged)
	a.Caches.Claims().Watch(func(before, after *corev1.PersistentVolumeClaim) {
		c := after
		if c == nil {
			c = before
		}
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

// addPod asks for a Pod and all that it wants or has to be looked at.
func (a *Agent) addPod(pod *corev1.Pod) {
	a.volumes.AddPod(pod)
	a.pods.Add(cluster.Key(pod))
}

// nodeChanged looks at the volumes that were attached or detached, and notices
// when the Node was deleted under its agent.
func (a *Agent) nodeChanged(before, after *corev1.Node) {
	a.node.Changed(before, after)
	if after == nil {
		return
	}
	a.notesChanged(before, after)
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

// notesChanged looks at the volumes of the drivers of which the Node notes
// something else than before: their Pods are told why they wait.
func (a *Agent) notesChanged(before, after *corev1.Node) {
	was, is := note.Of(before), note.Of(after)
	for _, all := range []map[string]string{was, is} {
		for driver := range all {
			wrong, known := was[driver]
			if now, still := is[driver]; known != still || wrong != now {
				a.volumes.AddAll(driver)
			}
		}
	}
}
