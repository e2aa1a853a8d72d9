package volume

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestResizeEndsAtOnce: what will not happen as long as the volume is mounted is not waited for, and what may happen
// yet is.
func TestResizeEndsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		// code is that of the driver's answer to NodeExpandVolume.
		code, infeasible string
		// before says that the event was there before the request.
		before bool
		atOnce bool
	}{
		"refused":                          {code: "FailedPrecondition", atOnce: true},
		"a refusal of an earlier request":  {code: "FailedPrecondition", before: true},
		"it may succeed yet":               {code: "Internal"},
		"nothing is known":                 {},
		"the driver cannot do it for good": {infeasible: "OutOfRange: too large", atOnce: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := growing(c.infeasible)
				event := &corev1.Event{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: "default", Name: "e", UID: "e", Annotations: map[string]string{
							volume.AnnCause: `{"code":"` + c.code + `"}`,
						},
					},
					InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Name: "data", UID: claim.UID},
					Reason:         string(volume.ReasonFailedNodeResize),
				}
				api := kubetest.NewAPI(t, claim, event)
				var before map[types.UID]string
				if c.before {
					var err error
					if before, err = growthRefused(t.Context(), api, claim); err != nil || len(before) != 1 {
						t.Fatal(before, err)
					}
				}
				var out bytes.Buffer
				s := &shell.Shell{Streams: shell.Streams{Out: &out, Err: &out}}
				ctx, cancel := shell.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				err := awaitSize(ctx, s, api, claim, resource.MustParse("2Gi"), before)
				if took := time.Since(began); took < 5*time.Second != c.atOnce {
					t.Errorf("it took %s", took)
				}
				if err == nil || !strings.Contains(err.Error(), "does not have 2Gi yet: ") {
					t.Error(err)
				}
			})
		})
	}
}

// growing is a claim that requests more than its capacity.
func growing(infeasible string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "uid-data"}}
	c.Spec.VolumeName = "pv"
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	c.Status.Phase = corev1.ClaimBound
	c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	if infeasible != "" {
		c.Status.AllocatedResources = c.Spec.Resources.Requests
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInfeasible,
		}
		c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimControllerResizeError, Message: infeasible},
		}
	}
	return c
}
