package kube

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// aside begins the lines that are not compared: what always differs, and what changes while a call is
// repeated.
const aside = "aside: "

// comparedVersions returns a text that changes with all that is compared.
func (s side) comparedVersions(ctx context.Context) (string, error) {
	all, err := s.states(ctx)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, space := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintln(&b, space, compared(all[space]))
	}
	return b.String(), nil
}

// listed returns all custom resources of a kind.
func listed[T any](ctx context.Context, s side, r schema.GroupVersionResource) ([]*T, error) {
	all, err := s.dynamic.Resource(r).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make([]*T, len(all.Items))
	for i := range all.Items {
		if out[i], err = typed[T](&all.Items[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// snapshotStates returns the state of each sequence about snapshots.
func (s side) snapshotStates(ctx context.Context) (state, error) {
	shots, err := listed[snapshotv1.VolumeSnapshot](ctx, s, snapshots())
	if err != nil {
		return nil, err
	}
	contents, err := listed[snapshotv1.VolumeSnapshotContent](ctx, s, snapshotContents())
	if err != nil {
		return nil, err
	}
	classes, err := listed[snapshotv1.VolumeSnapshotClass](ctx, s, snapshotClasses())
	if err != nil {
		return nil, err
	}
	out, names := state{}, map[string]bool{}
	for _, c := range contents {
		names[c.Name+" for "+string(c.Spec.VolumeSnapshotRef.UID)] = true
	}
	for _, one := range shots {
		s.memory.claims[one.UID] = claimName{one.Namespace, one.Name}
		out[one.Namespace] = append(out[one.Namespace], s.shotLines(one, names)...)
	}
	for _, c := range contents {
		space := c.Spec.VolumeSnapshotRef.Namespace
		out[space] = append(out[space], s.contentLines(c)...)
	}
	for _, c := range classes {
		space := s.spaceOf(c.Name)
		out[space] = append(out[space], fmt.Sprintf("class %s of %s %s default=%q parameters=%v", s.bare(c.Name), c.Driver,
			c.DeletionPolicy, c.Annotations[volume.AnnDefaultSnapshotClass], c.Parameters))
	}
	if err := s.claimsAndSecrets(ctx, out); err != nil {
		return nil, err
	}
	if err := s.stored(out); err != nil {
		return nil, err
	}
	for _, lines := range out {
		for i := range lines {
			lines[i] = s.memory.named(lines[i])
		}
		slices.Sort(lines)
	}
	return out, nil
}

func (s side) claimsAndSecrets(ctx context.Context, out state) error {
	claims, err := s.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		out[c.Namespace] = append(out[c.Namespace], fmt.Sprintf("claim %s %s volume=%s%s finalizers=%v going=%v", c.Name,
			c.Status.Phase, s.bare(c.Spec.VolumeName), sourceOf(c), sorted(c.Finalizers), c.DeletionTimestamp != nil))
	}
	volumes, err := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range volumes.Items {
		v := &volumes.Items[i]
		driver := noDriver
		if v.Spec.CSI != nil {
			driver = v.Spec.CSI.Driver
		}
		space := s.spaceOf(v.Name)
		out[space] = append(out[space], fmt.Sprintf("volume %s of %s", s.bare(v.Name), driver))
	}
	secrets, err := s.client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range secrets.Items {
		o := &secrets.Items[i]
		out[o.Namespace] = append(out[o.Namespace], fmt.Sprintf("secret %s", o.Name))
	}
	return nil
}

// shotLines describes a snapshot. Nothing follows from the error of one that is going, nor from that it is still
// kept as a source, nor from that one without a content is kept for it: these are aside.
func (s side) shotLines(o *snapshotv1.VolumeSnapshot, contents map[string]bool) []string {
	status := ptr.Deref(o.Status, snapshotv1.VolumeSnapshotStatus{})
	source := "claim " + ptr.Deref(o.Spec.Source.PersistentVolumeClaimName, "none")
	name := "snapcontent-" + string(o.UID)
	if given := o.Spec.Source.VolumeSnapshotContentName; given != nil {
		source, name = "content "+s.bare(*given), *given
	}
	kept, problem, size, going := sorted(o.Finalizers), shotFailure(status.Error), "none", o.DeletionTimestamp != nil
	lines := []string{fmt.Sprintf(aside+"snapshot %s error=%s finalizers=%v", o.Name, problem, kept)}
	kept = slices.DeleteFunc(kept, func(f string) bool {
		return f == volume.FinalizerSnapshotBound && !contents[name+" for "+string(o.UID)] ||
			f == volume.FinalizerSnapshotAsSource && going
	})
	if going {
		problem = "any"
	}
	if status.RestoreSize != nil {
		size = status.RestoreSize.String()
	}
	return append(lines, fmt.Sprintf("snapshot %s of %s class=%s bound=%s ready=%v created=%s size=%s error=%s "+
		"finalizers=%v going=%v", o.Name, source, s.bare(ptr.Deref(o.Spec.VolumeSnapshotClassName, "none")),
		s.bare(ptr.Deref(status.BoundVolumeSnapshotContentName, "none")), ptr.Deref(status.ReadyToUse, false),
		moment(status.CreationTime), size, problem, kept, going))
}

// moment tells a time that the driver has told, and of others only that they are there.
func moment(t *metav1.Time) string {
	switch {
	case t == nil:
		return "none"
	case time.Since(t.Time) < 24*time.Hour:
		return "now"
	}
	return fmt.Sprint(t.Unix())
}

// contentLines describes a content. That its driver is being asked changes while the call is repeated; a
// content that is going may have an error or none.
func (s side) contentLines(c *snapshotv1.VolumeSnapshotContent) []string {
	status, ref := ptr.Deref(c.Status, snapshotv1.VolumeSnapshotContentStatus{}), c.Spec.VolumeSnapshotRef
	uid := "another"
	switch of := s.memory.claims[ref.UID]; {
	case ref.UID == "":
		uid = "none"
	case of.space != "":
		uid = of.name
	}
	source := "volume " + s.bare(ptr.Deref(c.Spec.Source.VolumeHandle, ""))
	if c.Spec.Source.SnapshotHandle != nil {
		source = "snapshot " + *c.Spec.Source.SnapshotHandle
	}
	notes := maps.Clone(c.Annotations)
	delete(notes, volume.AnnSnapshotCreating)
	delete(notes, volume.AnnSnapshotParameters)
	delete(notes, volume.AnnSnapshotName)
	problem, going := shotFailure(status.Error), c.DeletionTimestamp != nil
	line := fmt.Sprintf(aside+"content %s parameters=%s label=%q intended=%v error=%s", s.bare(c.Name),
		c.Annotations[volume.AnnSnapshotParameters], c.Labels[volume.LabelMadeBy],
		c.Annotations[volume.AnnSnapshotCreating] != "", problem)
	if going {
		problem = "any"
	}
	var created *metav1.Time
	if status.CreationTime != nil {
		created = &metav1.Time{Time: time.Unix(0, *status.CreationTime)}
	}
	return []string{line, fmt.Sprintf("content %s for %s uid of %s class=%s of %s %s mode=%s source=%s handle=%s "+
		"ready=%v created=%s size=%d error=%s annotations=%v finalizers=%v going=%v", s.bare(c.Name), ref.Name, uid,
		s.bare(ptr.Deref(c.Spec.VolumeSnapshotClassName, "none")), c.Spec.Driver, c.Spec.DeletionPolicy,
		ptr.Deref(c.Spec.SourceVolumeMode, "none"), source, ptr.Deref(status.SnapshotHandle, "none"),
		ptr.Deref(status.ReadyToUse, false), moment(created), ptr.Deref(status.RestoreSize, 0), problem, annotations(notes),
		sorted(c.Finalizers), going)}
}

// shotFailure tells a driver's answer by its code, and of everything else only that it is there: each side says
// it in its own words.
func shotFailure(e *snapshotv1.VolumeSnapshotError) string {
	if e == nil {
		return "none"
	}
	for _, words := range []string{`code = (\w+) desc = as the test wants`, `\b(\w+): as the test wants`} {
		if found := regexp.MustCompile(words).FindStringSubmatch(ptr.Deref(e.Message, "")); found != nil {
			return found[1]
		}
	}
	return "its own"
}
