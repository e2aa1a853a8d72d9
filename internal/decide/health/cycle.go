package health

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/volume"
)

// Answer is what a driver's controller has reported about one volume in one cycle.
type Answer int

const (
	// Silent means nothing: the call failed, or the list ended before its end.
	Silent Answer = iota
	// Absent means that a complete list of the unhealthy volumes does not include it.
	Absent
	// Told means that the reports are all that is wrong with it.
	Told
)

// enough is the number of consecutive complete lists without a volume after which it counts as healthy: a driver that
// has just started may not know of all problems yet.
const enough = 2

// Facts are what a cycle has found out about a volume.
type Facts struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	Answer
	Reports []Report
	// Absences is in how many complete lists before this one the volume was absent.
	Absences int
	// CanAsk means that the driver can be queried about this volume alone.
	CanAsk bool
}

// Plan is what follows.
type Plan struct {
	// Ask means that the driver must be asked about this volume alone.
	Ask bool
	// Health is what to write; nil if nothing changes.
	Health *corev1.VolumeHealthStatus
	// Because says what has changed, if anything.
	Because volume.Because
	// Absences is in how many complete lists the volume is absent now.
	Absences int
}

// OfClaim decides which health a claim reports for its volume. A failed call does not make a volume healthy.
func OfClaim(f Facts, now metav1.Time) Plan {
	if !f.bound() || f.Answer == Silent {
		return Plan{Absences: f.Absences}
	}
	var last []corev1.VolumeHealthCondition
	if h := f.Claim.Status.HealthStatus; h != nil {
		last = h.HealthConditions
	}
	p := Plan{}
	if f.Answer == Absent && len(last) > 0 {
		if p.Absences = f.Absences + 1; p.Absences < enough {
			p.Ask = f.CanAsk
			return p
		}
	}
	conditions := OfVolume(f.Reports)
	if Same(last, conditions) {
		return p
	}
	p.Health = &corev1.VolumeHealthStatus{HealthConditions: conditions, LastTransitionTime: now}
	driver := f.Volume.Spec.CSI.Driver
	because, ill := VolumeProblem(driver, f.Volume.Name, "", conditions)
	if !ill {
		because = volume.Because{
			Reason:  volume.ReasonHealthy,
			Message: "driver " + driver + " says that volume " + f.Volume.Name + " is healthy again",
		}
	}
	p.Because = because
	return p
}

// bound says whether the claim has the volume, and a driver serves it.
func (f Facts) bound() bool {
	return f.Claim != nil && f.Volume != nil && f.Volume.Spec.CSI != nil && f.Claim.Spec.VolumeName == f.Volume.Name &&
		f.Volume.Spec.ClaimRef != nil && f.Volume.Spec.ClaimRef.UID == f.Claim.UID &&
		f.Claim.Status.Phase == corev1.ClaimBound
}

// With returns the claim with another health.
func With(c *corev1.PersistentVolumeClaim, h *corev1.VolumeHealthStatus) *corev1.PersistentVolumeClaim {
	c = c.DeepCopy()
	c.Status.HealthStatus = h
	return c
}

// SecretsOf returns the Secrets that a driver receives in calls for a volume, and may quote.
func SecretsOf(v *corev1.PersistentVolume) []corev1.SecretReference {
	s := v.Spec.CSI
	set := map[corev1.SecretReference]bool{}
	for _, ref := range []*corev1.SecretReference{
		s.ControllerPublishSecretRef, s.NodeStageSecretRef, s.NodePublishSecretRef, s.ControllerExpandSecretRef,
		s.NodeExpandSecretRef,
		{Name: v.Annotations[volume.AnnDeletionSecretName], Namespace: v.Annotations[volume.AnnDeletionSecretNamespace]},
		{Name: v.Annotations[volume.AnnModifySecretName], Namespace: v.Annotations[volume.AnnModifySecretNamespace]},
	} {
		if ref != nil && ref.Name != "" {
			set[*ref] = true
		}
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b corev1.SecretReference) int {
		return slices.Compare([]string{a.Namespace, a.Name}, []string{b.Namespace, b.Name})
	})
}

// Hide returns reports without secrets. If a Secret cannot be read, nothing of the driver's words is left.
func Hide(all []Report, secrets []map[string]string, unread error) []Report {
	known := &redact.Secrets{}
	for _, data := range secrets {
		known.AddData(data)
	}
	out := slices.Clone(all)
	for i := range out {
		r := &out[i]
		if r.Reason, r.Message = known.Hide(r.Reason), known.Hide(r.Message); unread != nil {
			r.Reason = Unspecified
			r.Message = fmt.Sprintf("(what the driver said is not shown, because it may hold a secret: %.300s)", unread)
		}
	}
	return out
}
