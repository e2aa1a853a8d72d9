package volumes

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	decide "volplane.dev/volplane/internal/decide/mount"
)

// mountGroup returns the VolumeMountGroup for a driver's call, "" if the driver does not support it or
// the Pod has no group. A volume is staged for all its Pods, with the group of the first one; pod is
// nil then.
func (f *facts) mountGroup(pod *corev1.Pod) string {
	together := func(c decide.Consumer) bool { return c.Apart == "" }
	if first := slices.IndexFunc(f.Wanted, together); pod == nil && first >= 0 {
		pod = f.consumers[f.Wanted[first].Path].pod
	}
	if !f.driver.Node.MountGroup || groupOf(pod) == nil {
		return ""
	}
	return strconv.FormatInt(*groupOf(pod), 10)
}

func groupOf(pod *corev1.Pod) *int64 {
	if pod == nil || pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// fsGroup says whether the agent has to change the group of the files to the Pod's, and whether it does
// so even if the top directory already has that group.
func (f *facts) fsGroup(policy *storagev1.FSGroupPolicy, c consumer, readOnly bool) (group int, always, ok bool) {
	g := groupOf(c.pod)
	if g == nil || readOnly || f.Block || f.driver.Node.MountGroup {
		return 0, false, false
	}
	switch ptr.Deref(policy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy) {
	case storagev1.FileFSGroupPolicy:
		ok = true
	case storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy:
		ok = c.pv.Spec.CSI.FSType != "" && slices.ContainsFunc(c.pv.Spec.AccessModes, oneWriter)
	}
	change := c.pod.Spec.SecurityContext.FSGroupChangePolicy
	return int(*g), change == nil || *change == corev1.FSGroupChangeAlways, ok
}

// oneWriter says whether a mode is for writers on one node.
func oneWriter(mode corev1.PersistentVolumeAccessMode) bool {
	return mode == corev1.ReadWriteOnce || mode == corev1.ReadWriteOncePod
}
