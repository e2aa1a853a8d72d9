package differential

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/upstream"
)

// quiet is the time without changes after which both sides count as at rest. Kubernetes' binder
// reconciles all objects twice in that time.
const quiet = 3 * upstream.SyncPeriod

// Topic is what a comparison is about.
type Topic struct {
	// Pause is how long a side waits between two checks of whether it is at rest.
	Pause time.Duration
	// States returns the compared lines, and versions a text that changes until a side is at rest; nil means that of all
	// compared lines.
	States   func(ctx context.Context, s Side) (State, error)
	Versions func(ctx context.Context, s Side) (string, error)
	// Awake waits until all controllers of a side have done something.
	Awake func(ctx context.Context, s Side, name string) error
	// Touch edits objects of a sequence, which ends the pauses of controllers.
	Touch func(ctx context.Context, s Side, space string, mark int) error
	// Remove deletes what sequences leave, other than what belongs to their namespaces, classes and volumes.
	Remove func(ctx context.Context, s Side) error
	// NeedsAttach sets whether the driver needs attaching.
	NeedsAttach func(ctx context.Context, s Side, required bool) error
}

// Rest waits until a side is at rest.
func (s Side) Rest(ctx context.Context) error {
	again := time.NewTicker(s.Topic.Pause)
	defer again.Stop()
	before, since := "", time.Now()
	for {
		now, err := s.versions(ctx)
		switch {
		case err != nil:
			return err
		case now != before:
			before, since = now, time.Now()
		case time.Since(since) >= quiet:
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%s does not come to rest: %w", s.Name, ctx.Err())
		}
	}
}

// versions returns a text that changes until the side is at rest.
func (s Side) versions(ctx context.Context) (string, error) {
	if s.Topic.Versions != nil {
		return s.Topic.Versions(ctx, s)
	}
	// Operations of several sequences may wait for rest at the same time, and share what they have observed.
	s.Memory.seeing.Lock()
	defer s.Memory.seeing.Unlock()
	all, err := s.Topic.States(ctx, s)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, space := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintln(&b, space, compared(all[space]))
	}
	return b.String(), nil
}

// BoundVersions returns a text that changes with each claim and volume. Annotations of a provisioner that
// repeats a call do not count.
func BoundVersions(ctx context.Context, s Side) (string, error) {
	var b strings.Builder
	for _, resource := range []string{"persistentvolumes", "persistentvolumeclaims"} {
		list := &metav1.PartialObjectMetadataList{}
		raw, err := s.Client.CoreV1().RESTClient().Get().Resource(resource).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
		if err == nil {
			err = json.Unmarshal(raw, list)
		}
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			o := &list.Items[i]
			version := o.ResourceVersion
			if o.Namespace != "" {
				version = fmt.Sprint(Annotations(o.Annotations), Sorted(o.Finalizers), o.DeletionTimestamp)
			}
			b.WriteString(o.Namespace + "/" + o.Name + "=" + version + "\n")
		}
	}
	return b.String(), nil
}

// State is the compared state: one line for each object of a sequence, by namespace.
type State map[string][]string

// BoundStates returns the state of each sequence about claims and volumes, and the additions of more.
func (s Side) BoundStates(ctx context.Context, more func(ctx context.Context, s Side, out State) error) (State, error) {
	claims, err := s.Client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	volumes, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out, names := State{}, map[types.UID]string{"": "none"}
	for i := range claims.Items {
		c := &claims.Items[i]
		s.Memory.Claims[c.UID] = ClaimName{c.Namespace, c.Name}
		names[c.UID] = c.Name
		out[c.Namespace] = append(out[c.Namespace], s.Memory.Named(claimLine(c)))
	}
	for i := range volumes.Items {
		v := &volumes.Items[i]
		space := s.SpaceOf(v.Name)
		line, err := volumeLine(v, strings.TrimPrefix(v.Name, space+"-"), names)
		if err != nil {
			return nil, err
		}
		out[space] = append(out[space], s.Memory.Named(line))
	}
	if err := s.parameters(ctx, out); err != nil {
		return nil, err
	}
	if err := more(ctx, s, out); err != nil {
		return nil, err
	}
	if err := s.Stored(out); err != nil {
		return nil, err
	}
	s.Memory.addAsides(out)
	for _, lines := range out {
		for i := range lines {
			lines[i] = s.Memory.short(lines[i])
		}
		slices.Sort(lines)
	}
	return out, nil
}

// parameters adds a line for each class of the driver.
func (s Side) parameters(ctx context.Context, out State) error {
	classes, err := s.Client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range classes.Items {
		c := &classes.Items[i]
		text, err := json.Marshal(c.Parameters)
		if err != nil {
			return err
		}
		if space := c.Parameters[ParameterSpace]; space != "" {
			out[space] = append(out[space],
				fmt.Sprintf("class %s of %s parameters %s", strings.TrimPrefix(c.Name, space+"-"), c.Provisioner, text))
		}
	}
	return nil
}

func claimLine(c *corev1.PersistentVolumeClaim) string {
	class := "none"
	if c.Spec.StorageClassName != nil {
		class = strings.TrimPrefix(*c.Spec.StorageClassName, c.Namespace+"-")
	}
	notes := maps.Clone(c.Annotations)
	if notes["pv.kubernetes.io/bind-completed"] == "" || c.Spec.VolumeName != "pvc-"+string(c.UID) {
		// Within one process the binder calls the provisioner without a write; Kubernetes' write for that is made when the
		// claim is bound to the volume that was created for it.
		delete(notes, volume.AnnStorageProvisioner)
		delete(notes, volume.AnnBetaStorageProvisioner)
	}
	return fmt.Sprintf("claim %s %s class=%s volume=%q capacity=%s modes=%v annotations=%v finalizers=%v going=%v%s%s",
		c.Name, c.Status.Phase, class, c.Spec.VolumeName, c.Status.Capacity.Storage(), c.Status.AccessModes,
		Annotations(notes), Sorted(c.Finalizers), c.DeletionTimestamp != nil, SourceOf(c), attributesOf(c))
}

// attributesOf describes the attributes that a claim requests and has.
func attributesOf(c *corev1.PersistentVolumeClaim) string {
	if c.Spec.VolumeAttributesClassName == nil && c.Status.CurrentVolumeAttributesClassName == nil {
		return ""
	}
	name := func(class *string) string { return strings.TrimPrefix(ptr.Deref(class, "none"), c.Namespace+"-") }
	return " attributes=" + name(c.Spec.VolumeAttributesClassName) + " has=" +
		name(c.Status.CurrentVolumeAttributesClassName)
}

// SourceOf describes the data source of a claim.
func SourceOf(c *corev1.PersistentVolumeClaim) string {
	if c.Spec.DataSource == nil {
		return ""
	}
	return fmt.Sprintf(" source=%s:%s.", c.Spec.DataSource.Kind, c.Spec.DataSource.Name)
}

func volumeLine(v *corev1.PersistentVolume, name string, claims map[types.UID]string) (string, error) {
	ref := "none"
	if r := v.Spec.ClaimRef; r != nil {
		uid, known := claims[r.UID]
		if !known {
			uid = "gone"
		}
		ref = r.Name + " uid of " + uid
	}
	spec := v.Spec.DeepCopy()
	spec.ClaimRef = nil
	if spec.CSI != nil {
		// It contains the time when Kubernetes' provisioner was started, and has no meaning for
		// drivers.
		delete(spec.CSI.VolumeAttributes, "storage.kubernetes.io/csiProvisionerIdentity")
	}
	if spec.NodeAffinity != nil && spec.NodeAffinity.Required != nil {
		// Kubernetes writes the keys of a segment in any order.
		for _, term := range spec.NodeAffinity.Required.NodeSelectorTerms {
			slices.SortFunc(term.MatchExpressions, func(a, b corev1.NodeSelectorRequirement) int {
				return strings.Compare(a.Key, b.Key)
			})
		}
	}
	text, err := json.Marshal(spec)
	return fmt.Sprintf("volume %s %s for %s annotations=%v finalizers=%v going=%v spec=%s", name, v.Status.Phase, ref,
		Annotations(v.Annotations), Sorted(v.Finalizers), v.DeletionTimestamp != nil, text), err
}

// Annotations returns all annotations except that of the disturber, those with which Kubernetes' provisioner records
// that there is no secret, and those with a secret for calls that volplane never makes.
func Annotations(all map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		none := all[k] == "" && (k == volume.AnnDeletionSecretName || k == volume.AnnDeletionSecretNamespace)
		if !none && k != annDisturbed && !strings.HasPrefix(k, "volume.kubernetes.io/controller-modify-secret-") {
			out = append(out, strings.TrimPrefix(k, "pv.kubernetes.io/")+"="+all[k])
		}
	}
	return out
}

// Sorted returns a sorted copy.
func Sorted(all []string) []string { return slices.Sorted(slices.Values(all)) }
