package resizer

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/volume"
)

func began(size string) *corev1.PersistentVolumeClaim {
	return resize.Started(claim(), resource.MustParse(size), metav1.Now())
}

// TestRefusal is of one size of one claim, and any later doubt takes it back: who
// believes it wrongly asks for less than the volume has.
func TestRefusal(t *testing.T) {
	m := newMemory()
	another := began("2Gi")
	another.UID = "other"
	if m.wasRefused(began("2Gi")) {
		t.Error("nothing was refused yet")
	}
	m.record(began("2Gi"), volume.Failed)
	if !m.wasRefused(began("2Gi")) || m.wasRefused(began("3Gi")) || m.wasRefused(another) {
		t.Error("2Gi of one claim was refused")
	}
	m.record(began("2Gi"), volume.Unknown)
	if m.wasRefused(began("2Gi")) {
		t.Error("the refusal is not certain any more")
	}
	m.record(began("2Gi"), volume.Failed)
	m.record(another, volume.Failed)
	m.record(began("2Gi"), volume.Done)
	if m.wasRefused(began("2Gi")) || !m.wasRefused(another) {
		t.Error("one claim was to be forgotten")
	}
	// A claim without a state has never been refused.
	if m.wasRefused(claim()) {
		t.Error("no size was refused")
	}
}

// TestPause begins when it is asked for first, and ends; another refusal, or a
// claim that was forgotten, begins another one.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		never := func(size string) *corev1.PersistentVolumeClaim {
			return resize.Infeasible(claim(), resource.MustParse(size), "never", metav1.Now())
		}
		is := func(c *corev1.PersistentVolumeClaim, want time.Duration) {
			t.Helper()
			if got := m.pause(c); got != want {
				t.Errorf("left alone for %s, wanted %s", got, want)
			}
		}
		is(never("2Gi"), infeasiblePause)
		<-time.After(time.Minute)
		is(never("2Gi"), infeasiblePause-time.Minute)
		another := never("2Gi")
		another.UID = "other"
		is(another, infeasiblePause)
		<-time.After(infeasiblePause)
		is(never("2Gi"), 0)
		is(never("3Gi"), infeasiblePause)
		<-time.After(time.Minute)
		atNode := never("3Gi")
		atNode.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInfeasible
		is(atNode, infeasiblePause)
		<-time.After(time.Minute)
		m.forget("c")
		is(atNode, infeasiblePause)
		is(another, 0)
	})
}
