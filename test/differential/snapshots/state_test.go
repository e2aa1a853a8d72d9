package snapshots

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// listed returns all custom resources of a kind.
func listed[T any](ctx context.Context, s side, r schema.GroupVersionResource) ([]*T, error) {
	all, err := s.Dynamic.Resource(r).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make([]*T, len(all.Items))
	for i := range all.Items {
		if out[i], err = upstream.Typed[T](&all.Items[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// snapshotStates returns the state of each sequence about snapshots.
func snapshotStates(ctx context.Context, s side) (state, error) {
	shots, err := listed[snapshotv1.VolumeSnapshot](ctx, s, upstream.Snapshots())
	if err != nil {
		return nil, err
	}
	contents, err := listed[snapshotv1.VolumeSnapshotContent](ctx, s, upstream.SnapshotContents())
	if err != nil {
		return nil, err
	}
	classes, err := listed[snapshotv1.VolumeSnapshotClass](ctx, s, upstream.SnapshotClasses())
	if err != nil {
		return nil, err
	}
	out, names := state{}, map[string]bool{}
	for _, c := range contents {
		names[c.Name+" for "+string(c.Spec.VolumeSnapshotRef.UID)] = true
	}
	for _, one := range shots {
		s.Memory.Claims[one.UID] = differential.ClaimName{Space: one.Namespace, Name: one.Name}
		out[one.Namespace] = append(out[one.Namespace], shotLines(s, one, names)...)
	}
	for _, c := range contents {
		space := c.Spec.VolumeSnapshotRef.Namespace
		out[space] = append(out[space], contentLines(s, c)...)
	}
	for _, c := range classes {
		space := s.SpaceOf(c.Name)
		out[space] = append(out[space], fmt.Sprintf("class %s of %s %s default=%q parameters=%v", s.Bare(c.Name), c.Driver,
			c.DeletionPolicy, c.Annotations[volume.AnnDefaultSnapshotClass], c.Parameters))
	}
	if err := claimsAndSecrets(ctx, s, out); err != nil {
		return nil, err
	}
	if err := s.Stored(out); err != nil {
		return nil, err
	}
	for _, lines := range out {
		for i := range lines {
			lines[i] = s.Memory.Named(lines[i])
		}
		slices.Sort(lines)
	}
	return out, nil
}

func claimsAndSecrets(ctx context.Context, s side, out state) error {
	claims, err := s.Client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		out[c.Namespace] = append(out[c.Namespace], fmt.Sprintf("claim %s %s volume=%s%s finalizers=%v going=%v", c.Name,
			c.Status.Phase, s.Bare(c.Spec.VolumeName), differential.SourceOf(c), differential.Sorted(c.Finalizers),
			c.DeletionTimestamp != nil))
	}
	volumes, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range volumes.Items {
		v := &volumes.Items[i]
		driver := noDriver
		if v.Spec.CSI != nil {
			driver = v.Spec.CSI.Driver
		}
		space := s.SpaceOf(v.Name)
		out[space] = append(out[space], fmt.Sprintf("volume %s of %s", s.Bare(v.Name), driver))
	}
	secrets, err := s.Client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range secrets.Items {
		o := &secrets.Items[i]
		out[o.Namespace] = append(out[o.Namespace], fmt.Sprintf("secret %s", o.Name))
	}
	return nil
}

// shotLines describes a snapshot. The error of a snapshot that is being deleted has no consequence, nor has a finalizer
// that still keeps it as a source, or that keeps one without a content: these are not compared.
func shotLines(s side, o *snapshotv1.VolumeSnapshot, contents map[string]bool) []string {
	status := ptr.Deref(o.Status, snapshotv1.VolumeSnapshotStatus{})
	source := "claim " + ptr.Deref(o.Spec.Source.PersistentVolumeClaimName, "none")
	name := "snapcontent-" + string(o.UID)
	if given := o.Spec.Source.VolumeSnapshotContentName; given != nil {
		source, name = "content "+s.Bare(*given), *given
	}
	kept, problem, size := differential.Sorted(o.Finalizers), shotFailure(status.Error), "none"
	going := o.DeletionTimestamp != nil
	lines := []string{fmt.Sprintf(differential.Aside+"snapshot %s error=%s finalizers=%v", o.Name, problem, kept)}
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
		"finalizers=%v going=%v", o.Name, source, s.Bare(ptr.Deref(o.Spec.VolumeSnapshotClassName, "none")),
		s.Bare(ptr.Deref(status.BoundVolumeSnapshotContentName, "none")), ptr.Deref(status.ReadyToUse, false),
		moment(status.CreationTime), size, problem, kept, going))
}

// moment prints a time that the driver has reported, and only the existence of other times.
func moment(t *metav1.Time) string {
	switch {
	case t == nil:
		return "none"
	case time.Since(t.Time) < 24*time.Hour:
		return "now"
	}
	return fmt.Sprint(t.Unix())
}

// contentLines describes a content. It leaves out whether its driver is being called, which changes while the call is
// repeated; a content that is being deleted may or may not have an error.
func contentLines(s side, c *snapshotv1.VolumeSnapshotContent) []string {
	status, ref := ptr.Deref(c.Status, snapshotv1.VolumeSnapshotContentStatus{}), c.Spec.VolumeSnapshotRef
	uid := "another"
	switch of := s.Memory.Claims[ref.UID]; {
	case ref.UID == "":
		uid = "none"
	case of.Space != "":
		uid = of.Name
	}
	source := "volume " + s.Bare(ptr.Deref(c.Spec.Source.VolumeHandle, ""))
	if c.Spec.Source.SnapshotHandle != nil {
		source = "snapshot " + *c.Spec.Source.SnapshotHandle
	}
	notes := maps.Clone(c.Annotations)
	delete(notes, volume.AnnSnapshotCreating)
	delete(notes, volume.AnnSnapshotParameters)
	delete(notes, volume.AnnSnapshotName)
	problem, going := shotFailure(status.Error), c.DeletionTimestamp != nil
	line := fmt.Sprintf(differential.Aside+"content %s parameters=%s label=%q intended=%v error=%s", s.Bare(c.Name),
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
		"ready=%v created=%s size=%d error=%s annotations=%v finalizers=%v going=%v", s.Bare(c.Name), ref.Name, uid,
		s.Bare(ptr.Deref(c.Spec.VolumeSnapshotClassName, "none")), c.Spec.Driver, c.Spec.DeletionPolicy,
		ptr.Deref(c.Spec.SourceVolumeMode, "none"), source, ptr.Deref(status.SnapshotHandle, "none"),
		ptr.Deref(status.ReadyToUse, false), moment(created), ptr.Deref(status.RestoreSize,
			0), problem, differential.Annotations(notes),
		differential.Sorted(c.Finalizers), going)}
}

// shotFailure prints a driver's answer by its code, and of any other error only that it exists: each side says
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
