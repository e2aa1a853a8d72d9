package provisioner

import (
	"context"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

func TestAClaimGetsItsVolume(t *testing.T) {
	t.Parallel()
	for _, annotation := range []string{volume.AnnStorageProvisioner, volume.AnnBetaStorageProvisioner} {
		t.Run(annotation, func(t *testing.T) {
			t.Parallel()
			c := claim("c")
			c.Annotations = map[string]string{annotation: driverName}
			w := newWorld(t, nil, c)
			v := w.saved("pvc-u-c")
			w.settled()
			if v.Spec.CSI == nil || v.Spec.CSI.VolumeHandle != "id-pvc-u-c" || v.Spec.ClaimRef.UID != "u-c" {
				t.Errorf("volume is %+v", v.Spec)
			}
		})
	}
}

// TestAFinalNoIsNotRepeatedAtOnce: the writes of the intent wake the claim,
// and must not take the pause between two attempts away.
func TestAFinalNoIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(d *driver) {
		d.answer = func(context.Context, *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
			return nil, status.Error(codes.InvalidArgument, "no such parameter")
		}
	}, claim("c"))
	kubetest.Eventually(t, func() string {
		if len(w.driver.calls()) < 4 {
			return "four calls of CreateVolume"
		}
		return ""
	})
	// However slow the machine is, it can only make a pause longer.
	calls, pause := w.driver.calls(), firstPause
	for i := range 3 {
		if got := calls[i+1].Sub(calls[i]); got < pause {
			t.Errorf("call %d came %v after the one before, want %v", i+2, got, pause)
		}
		pause *= 2
	}
	w.noVolumes()
}

// TestAnAnswerThatIsTooSmallLeavesNothing (S4-046).
func TestAnAnswerThatIsTooSmallLeavesNothing(t *testing.T) {
	w := newWorld(t, func(d *driver) {
		d.answer = func(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
			r.CapacityRange.RequiredBytes = 1
			return nil, nil
		}
	}, claim("c"))
	kubetest.Eventually(t, func() string {
		if len(w.driver.deletions()) == 0 {
			return "DeleteVolume"
		}
		return ""
	})
	w.noVolumes()
}

// TestAClaimGoneDuringTheCallLeavesNothing: what a call of an earlier life has
// made is deleted, though nothing is left of the claim.
func TestAClaimGoneDuringTheCallLeavesNothing(t *testing.T) {
	w := newWorld(t, func(d *driver) { d.volumes["id-pvc-u-c"] = 1 << 30 }, begun("u-c", "pvc-u-c"))
	w.settled()
	if left := w.driver.has(); left != "" {
		t.Errorf("left at the driver: %s", left)
	}
	w.noVolumes()
}

// begun is the log of a provisioner that stopped during its call.
func begun(uid types.UID, name string) *corev1.ConfigMap {
	in := &provision.Intent{
		Driver: driverName, Name: name, Bytes: 1 << 30, Modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Claim: corev1.ObjectReference{Namespace: "ns", Name: "c", UID: uid}, Reclaim: corev1.PersistentVolumeReclaimDelete,
		Class: "fast",
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: volume.NamespaceSystem, Name: Intents().Name + "-7",
			Labels: map[string]string{volume.LabelIntents: Intents().Name},
		},
		Data: map[string]string{string(uid): in.String()},
	}
}

// TestAnIntentForAnothersVolumeIsNotFollowed.
func TestAnIntentForAnothersVolumeIsNotFollowed(t *testing.T) {
	w := newWorld(t, func(d *driver) { d.volumes["id-pvc-victim"] = 1 << 30 }, begun("u-x", "pvc-victim"), claim("c"))
	w.saved("pvc-u-c")
	if got := w.driver.has(); got != "id-pvc-u-c id-pvc-victim" {
		t.Errorf("at the driver: %q; deleted: %v", got, w.driver.deletions())
	}
}

// TestACloneWaitsForItsSource: a source that is bound later wakes the clone.
func TestACloneWaitsForItsSource(t *testing.T) {
	source := claim("source")
	source.Annotations = nil
	clone := claim("clone")
	clone.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "source"}
	w := newWorld(t, nil, source, clone)
	w.tells("clone", volume.ReasonProvisioningFailed, "claim ns/source is not bound")
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h"}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "source", UID: "u-source"}
	if _, err := w.client.CoreV1().PersistentVolumes().Create(context.Background(), v,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	source = w.claim("source")
	source.Spec.VolumeName, source.Status.Phase = "pv", corev1.ClaimBound
	w.client.Put(source)
	w.saved("pvc-u-clone")
}

// TestAStrangersVolumeObjectHidesNothing: somebody else makes an object of the
// volume's name while the driver works. It is no proof that ours is saved.
func TestAStrangersVolumeObjectHidesNothing(t *testing.T) {
	client := make(chan *world, 1)
	w := newWorld(t, func(d *driver) {
		d.answer = func(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
			w := <-client
			defer func() { client <- w }()
			_, err := w.client.CoreV1().PersistentVolumes().Create(ctx,
				&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: r.GetName()}}, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				t.Error(err)
			}
			return nil, nil
		}
	}, claim("c"))
	client <- w
	w.settled()
	kubetest.Eventually(t, func() string {
		if len(w.driver.calls()) == 0 || w.driver.has() != "" {
			return "the driver's volume to be deleted"
		}
		return ""
	})
}
