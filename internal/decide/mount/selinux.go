package mount

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// Relabels says whether a Pod requests that the files of its volumes are relabelled one by one, instead of a mount
// option.
func Relabels(pod *corev1.Pod) bool {
	s := pod.Spec.SecurityContext
	return s != nil && s.SELinuxChangePolicy != nil && *s.SELinuxChangePolicy == corev1.SELinuxChangePolicyRecursive
}

// SELinuxOptions returns the SELinux options with which a Pod uses a volume, by its names in the Pod: those of the
// containers that mount it, where a container's own replace the Pod's as a whole. A volume that no container mounts is
// mounted for the Pod, with the Pod's options.
func SELinuxOptions(pod *corev1.Pod, names []string) []*corev1.SELinuxOptions {
	var all *corev1.SELinuxOptions
	if s := pod.Spec.SecurityContext; s != nil {
		all = s.SELinuxOptions
	}
	var out []*corev1.SELinuxOptions
	mounted := false
	add := func(mounts []corev1.VolumeMount, own *corev1.SecurityContext) {
		if !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return slices.Contains(names, m.Name) }) {
			return
		}
		mounted = true
		options := all
		if own != nil && own.SELinuxOptions != nil {
			options = own.SELinuxOptions
		}
		if options != nil {
			out = append(out, options)
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		add(c.VolumeMounts, c.SecurityContext)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		add(c.VolumeMounts, c.SecurityContext)
	}
	if !mounted && all != nil {
		out = append(out, all)
	}
	return out
}

// isLabel says whether a text is a label of files: user, role, type, and a level or a range of levels. Users write
// parts of it, and drivers hand it to mount(8) among other options.
func isLabel(text string) bool {
	const level = `s\d{1,4}(:c\d{1,4}([.,]c\d{1,4}){0,100})?`
	return regexp.MustCompile(`^([\w.-]{1,128}:){3}` + level + `(-` + level + `)?$`).MatchString(text)
}

// Label returns the label for the mount of a Pod's volume, given the labels of all containers that use it. It is empty
// if none is requested; refused says why there can be none.
func Label(labels []string) (one, refused string) {
	labels = slices.Compact(slices.Sorted(slices.Values(labels)))
	switch {
	case len(labels) == 0:
		return "", ""
	case len(labels) > 1:
		return "", fmt.Sprintf("the containers of the Pod use the volume with several SELinux labels: %.300s; "+
			"a mount has one", strings.Join(spelled(labels), ", "))
	case labels[0] != "" && !isLabel(labels[0]):
		return "", fmt.Sprintf("%.300q is not an SELinux label", labels[0])
	}
	return labels[0], ""
}

func spelled(labels []string) []string {
	out := make([]string, 0, len(labels))
	for _, l := range labels {
		out = append(out, fmt.Sprintf("%.100q", l))
	}
	return out
}

// WithLabel returns the mount options of a volume with its label, in quotes because there may be commas in it.
func WithLabel(options []string, label string) []string {
	if label == "" {
		return options
	}
	return append(slices.Clone(options), fmt.Sprintf("context=%q", label))
}

// admitLabel admits the Pods that request one label: the mounted one if a Pod wants it, otherwise that of the first
// Pod. A filesystem has one label on a node, so the others wait. A Pod that has the volume keeps it as it is.
func (f Facts) admitLabel() admission {
	a, first := admission{own: map[string]volume.Because{}}, f.labelledBy()
	if first >= 0 {
		a.label, a.remount = f.labelOf(f.Wanted[first])
	}
	for _, c := range f.Wanted {
		if f.keeps(c) || c.fits() && c.Label == a.label {
			a.pods = append(a.pods, c)
			continue
		}
		a.hold(c, f.heldBack(c, a.label, first))
	}
	return a
}

// labelOf returns the label of the volume, if a Pod determines one, and whether it is mounted with another one, which
// no Pod has any more.
func (f Facts) labelOf(c Consumer) (label string, remount bool) {
	r := f.Record
	has := r.Target(c.Path) != nil
	switch {
	case r.Empty():
		return c.Label, false
	case r.LabelUnknown:
		return c.Label, c.Label != "" && !has
	case has:
		return r.Label, false
	}
	return c.Label, c.Label != r.Label
}

// labelledBy returns the index of the Pod that determines the label, -1 if no Pod may have the volume.
func (f Facts) labelledBy() int {
	same := func(c Consumer) bool {
		return c.fits() && f.Record != nil && !f.Record.LabelUnknown && f.Record.Stage != "" && c.Label == f.Record.Label
	}
	for _, may := range []func(Consumer) bool{f.keeps, same, Consumer.fits} {
		if i := slices.IndexFunc(f.Wanted, may); i >= 0 {
			return i
		}
	}
	return -1
}

// heldBack returns why a Pod does not get the volume.
func (f Facts) heldBack(c Consumer, label string, first int) volume.Because {
	switch {
	case c.Refused != "":
		return volume.Say(volume.ReasonFailedMount, volume.User(), c.Refused)
	case c.Apart != "":
		return volume.Sayf(volume.ReasonFailedMount, volume.User(),
			"volume %s has the handle of volume %s, which is mounted on node %s with other attributes, Secrets, options or "+
				"volume mode: its Pods wait there until those of the other volume are gone", c.Volume, c.Apart, f.Node)
	}
	other, asked := f.Wanted[first].Namespace+"/"+f.Wanted[first].Name, "with the SELinux label "+label
	if label == "" {
		asked = "without an SELinux label"
	}
	return volume.Sayf(volume.ReasonSELinuxLabelConflict, volume.PodActor(other), "volume %s is on node %s %s for Pod "+
		"%s: Pods that ask for another label wait until no Pod has it there", f.Volume, f.Node, asked, other)
}
