package groupsnapshot

import (
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

// forTaking is the purpose of the Secret of a class for calls that take and delete a group.
const forTaking = "group-snapshotter"

// Chosen returns the claims of a group's namespace that its selector chooses, in order; none if the selector is not
// valid.
func Chosen(g *groupv1.VolumeGroupSnapshot, claims []*corev1.PersistentVolumeClaim) []*corev1.PersistentVolumeClaim {
	selector, err := metav1.LabelSelectorAsSelector(g.Spec.Source.Selector)
	if err != nil {
		return nil
	}
	var out []*corev1.PersistentVolumeClaim
	for _, c := range claims {
		if c.Namespace == g.Namespace && selector.Matches(labels.Set(c.Labels)) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.PersistentVolumeClaim) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// sourceProblem returns why no group can be taken of the chosen claims, or "".
func (f Facts) sourceProblem() string {
	if _, err := metav1.LabelSelectorAsSelector(f.Group.Spec.Source.Selector); err != nil {
		return "its selector is not valid: " + err.Error()
	}
	if len(f.Sources) == 0 {
		return "no claim of namespace " + f.Group.Namespace + " has the labels " +
			metav1.FormatLabelSelector(f.Group.Spec.Source.Selector)
	}
	first := f.Sources[0].Volume
	seen := map[string]string{}
	for _, s := range f.Sources {
		problem := snapshot.VolumeProblem(s.Claim, s.Volume)
		if problem == "" {
			problem = mismatch(first, s)
		}
		if problem != "" {
			return problem
		}
		handle := s.Volume.Spec.CSI.VolumeHandle
		if other := seen[handle]; other != "" {
			return "volumes " + other + " and " + s.Volume.Name + " are the same volume of the driver"
		}
		seen[handle] = s.Volume.Name
	}
	return ""
}

// mismatch returns why a claim's volume cannot be in one group with the first one, or "".
func mismatch(first *corev1.PersistentVolume, s Source) string {
	v := s.Volume
	switch {
	case s.Claim.DeletionTimestamp != nil:
		return "claim " + s.Claim.Name + " is being deleted"
	case v.Spec.CSI.Driver != first.Spec.CSI.Driver:
		return "volume " + first.Name + " belongs to driver " + first.Spec.CSI.Driver + ", and volume " + v.Name +
			" to driver " + v.Spec.CSI.Driver
	case provision.MadeOn(v) != provision.MadeOn(first):
		return "volume " + first.Name + " is on node " + provision.MadeOn(first) + ", and volume " + v.Name +
			" on node " + provision.MadeOn(v) + ": no driver takes both at one moment"
	}
	return ""
}

// classOf returns the class that a group has or gets; nil if it needs none.
func (f Facts) classOf() (*groupv1.VolumeGroupSnapshotClass, volume.Because) {
	g := f.Group
	switch {
	case className(g) != "" && f.Class == nil:
		return nil, volume.Say(volume.ReasonGroupClassFailed, volume.User(),
			"VolumeGroupSnapshotClass "+className(g)+" of group snapshot "+g.Name+" does not exist")
	case className(g) != "" || givenTo(g) != "":
		return f.Class, volume.Because{}
	}
	class, problem := f.chooseDefault()
	if problem != "" {
		return nil, volume.Say(volume.ReasonGroupDefaultFailed, volume.User(),
			"group snapshot "+g.Name+" has no class: "+problem)
	}
	return class, volume.Because{}
}

// chooseDefault returns the default class of the driver of a group's volumes, or why there is none.
func (f Facts) chooseDefault() (*groupv1.VolumeGroupSnapshotClass, string) {
	if problem := f.sourceProblem(); problem != "" {
		return nil, problem
	}
	return snapshot.DefaultOf(f.Classes, "VolumeGroupSnapshotClass", f.Sources[0].Volume.Spec.CSI.Driver,
		func(c *groupv1.VolumeGroupSnapshotClass) bool {
			return c.Annotations[volume.AnnDefaultGroupClass] == "true"
		},
		ClassOf)
}

// begin creates the content that makes a driver take a group.
func (f Facts) begin() Plan {
	g, class := f.Group, f.Class
	const cannot = "failed to create group snapshot content with error "
	problem := f.sourceProblem()
	switch {
	case problem != "":
		return f.failed(volume.ReasonGroupContentFailed, volume.User(), cannot+problem)
	case class.Driver != f.Sources[0].Volume.Spec.CSI.Driver:
		return f.failed(volume.ReasonGroupContentFailed, volume.User(), cannot+"VolumeGroupSnapshotClass "+class.Name+
			" belongs to driver "+class.Driver+", and volume "+f.Sources[0].Volume.Name+" to driver "+
			f.Sources[0].Volume.Spec.CSI.Driver)
	}
	content, err := f.contentOf()
	if err != nil {
		return f.failed(volume.ReasonGroupContentFailed, volume.User(), cannot+err.Error())
	}
	return Plan{Step: snapshot.CreateContent, Content: content, Event: true, Because: volume.Say(
		volume.ReasonGroupPending, volume.Driver(class.Driver),
		"Waiting for a group snapshot "+g.Namespace+"/"+g.Name+" to be created by the CSI driver.")}
}

// contentOf returns the content of a group. It has everything that is needed to take and to delete the driver's group,
// without the class, the claims or the volumes.
func (f Facts) contentOf() (*groupv1.VolumeGroupSnapshotContent, error) {
	g, class := f.Group, f.Class
	name := ContentName(g)
	inNamespace := map[string]string{
		"volumegroupsnapshotcontent.name": name, "volumegroupsnapshot.namespace": g.Namespace,
	}
	inName := map[string]string{
		"volumegroupsnapshotcontent.name": name, "volumegroupsnapshot.namespace": g.Namespace,
		"volumegroupsnapshot.name": g.Name,
	}
	notes, err := Groups().NotesOf(ClassOf(class), forTaking, f.Sources[0].Volume, inName, inNamespace)
	if err != nil {
		return nil, err
	}
	var handles []string
	for _, s := range f.Sources {
		handles = append(handles, s.Volume.Spec.CSI.VolumeHandle)
	}
	return &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: notes, Finalizers: []string{volume.FinalizerGroupContentBound},
			Labels: map[string]string{volume.LabelMadeBy: volume.Program},
		},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			VolumeGroupSnapshotRef: corev1.ObjectReference{
				Kind: volume.KindGroup, APIVersion: groupv1.SchemeGroupVersion.String(), Namespace: g.Namespace, Name: g.Name,
				UID: g.UID,
			},
			DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeGroupSnapshotClassName: &class.Name,
			Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: handles},
		},
	}, nil
}
