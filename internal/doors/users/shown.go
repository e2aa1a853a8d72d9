package users

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/volumeusers"
	"volplane.dev/volplane/internal/mount"
)

// shownLimit is how many mounts of a Pod are remembered: one, and one more for each time that it was mounted again.
const shownLimit = 16

// shown is a mount that was reported to a user, who may therefore have it elsewhere: a container has it even when it
// is not mounted on the host any more.
type shown struct {
	Device string `json:"device"`
	Root   string `json:"root"`
	// Pods is the directory of the node agent that has the mounts of Pods.
	Pods string `json:"pods"`
	// Boot is the boot of the host in which it is mounted: after the next one, the device may be another volume's.
	Boot string `json:"boot"`
}

// shownOf returns what a Pod has shown.
func (u *Users) shownOf(pod *corev1.Pod) ([]shown, error) {
	text := pod.Annotations[u.Shown]
	if text == "" {
		return nil, nil
	}
	var all []shown
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("annotation %s of pod %s is unreadable: %w", u.Shown, pod.Name, err)
	}
	return all, nil
}

// pathOf returns where a Pod's only volume is mounted, as the node agent says.
func pathOf(pod *corev1.Pod) string {
	for _, path := range cluster.MountPaths(pod) {
		return path
	}
	return ""
}

// Path returns where the volume of a Pod is mounted, if it is and this process sees it.
func (u *Users) Path(pod *corev1.Pod) (path string, ok bool) {
	path, _, ok = u.here(pod)
	return path, ok
}

// here returns what a Pod shows now, if it is mounted and this process sees it.
func (u *Users) here(pod *corev1.Pod) (path string, s shown, ok bool) {
	path = pathOf(pod)
	pods, _, below := strings.Cut(path, "/"+string(pod.UID)+"/")
	if !below || pod.DeletionTimestamp != nil {
		return "", s, false
	}
	point, ok := u.Kernel.Mounted(path)
	return path, shown{Device: point.Device, Root: point.Root, Pods: pods, Boot: u.Kernel.Boot}, ok
}

// remember records what is about to be reported to a user. The answer waits for it.
func (u *Users) remember(ctx context.Context, pod *corev1.Pod, s shown) error {
	return u.change(ctx, pod, u.Shown, func(pod *corev1.Pod) (string, error) {
		all, err := u.shownOf(pod)
		if err != nil || slices.Contains(all, s) {
			return pod.Annotations[u.Shown], err
		}
		all = append(all, s)
		text, err := json.Marshal(all[max(0, len(all)-shownLimit):])
		return string(text), err
	})
}

// Survey is one scan of the mounts of all processes, made when it is needed.
type Survey struct {
	users *Users
	made  bool
	copy  func(mount.Point) bool
	err   error
}

// Survey returns one that is not made yet.
func (u *Users) Survey() *Survey { return &Survey{users: u} }

// held says whether a Pod's volume is mounted for others than the node agent.
func (v *Survey) held(ctx context.Context, pod *corev1.Pod) volumeusers.Held {
	u := v.users
	all, err := u.shownOf(pod)
	if err != nil {
		u.Log.Warn(u.Door+": it is not known whether a volume is used", "err", err)
		return volumeusers.Unknown
	}
	if len(all) == 0 {
		return volumeusers.No
	}
	if !v.made {
		v.made = true
		// Beside the mounts of Pods are those that the agent makes for itself.
		v.copy, v.err = u.Kernel.Copies(ctx, mount.Inside(strings.TrimSuffix(all[0].Pods, "/pods")))
		if v.err != nil {
			u.Log.Warn(u.Door+": it is not known which volumes are used", "err", v.err)
		}
	}
	if v.err != nil {
		return volumeusers.Unknown
	}
	for _, s := range all {
		if s.Boot == u.Kernel.Boot && v.copy(mount.Point{Device: s.Device, Root: s.Root}) {
			return volumeusers.Yes
		}
	}
	return volumeusers.No
}
