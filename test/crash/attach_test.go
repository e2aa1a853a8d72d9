package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// attachScenarios returns the scenarios with volumes that are attached in unusual ways.
func attachScenarios() []scenario {
	immediate := storagev1.VolumeBindingImmediate
	return []scenario{
		{
			name: "a volume is on two nodes", prepare: classOf(immediate),
			play: play(makeSharedClaim, claimIs(corev1.ClaimBound), makePod("a", "n1"), makePod("b", "n2"), mayMount("a"),
				mayMount("b"), removePod("a"), removePod("b"), deleteClaim),
		},
		{
			name: "a volume object goes while it is attached", prepare: makeByHand,
			play: play(
				claimIs(corev1.ClaimBound), makePod("a", "n1"), mayMount("a"), stripVolume, removePod("a"),
				attachedTo(), deleteClaim,
			), orphans: 1, clean: removeOrphan,
		},
		{
			name: "a node is dead", prepare: classOf(immediate),
			play: play(
				makeClaim, claimIs(corev1.ClaimBound), makePod("a", "n1"), mayMount("a"), outOfService("n1", true), forgetPod("a"),
				makePod("b", "n2"), mayMount("b"),
				removePod("b"), deleteClaim, outOfService("n1", false), unused("n1"),
			),
		},
		{
			name: "the driver has attached what nobody asked for", prepare: classOf(immediate),
			play: play(makeSharedClaim, claimIs(corev1.ClaimBound), makePod("a", "n1"), mayMount("a"), publishUnasked("id-n2"),
				attachedTo("id-n1"), removePod("a"), deleteClaim),
		},
		{
			name: "the driver has forgotten an attachment", prepare: classOf(immediate),
			play: play(makeClaim, claimIs(corev1.ClaimBound), makePod("a", "n1"), mayMount("a"), unpublishUnasked("id-n1"),
				attachedTo("id-n1"), removePod("a"), deleteClaim),
		},
	}
}

// makeSharedClaim creates a claim for a volume that may be on many nodes.
func makeSharedClaim(ctx context.Context, w *survivors) error {
	return claimFrom("c", nil, corev1.ReadWriteMany)(ctx, w)
}

// makeByHand creates a volume at the driver, its object and its claim.
func makeByHand(ctx context.Context, w *survivors) error {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	made, err := w.driver.CreateVolume(ctx, &csipb.CreateVolumeRequest{
		Name:               "by-hand",
		VolumeCapabilities: []*csipb.VolumeCapability{mounted(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)},
	})
	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}, Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef: &corev1.ObjectReference{Namespace: space, Name: "c"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: w.driver.Name(), VolumeHandle: made.GetVolume().GetVolumeId(),
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().PersistentVolumeClaims(space).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(""), VolumeName: "by-hand", AccessModes: modes,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	return err
}

func mounted(mode csipb.VolumeCapability_AccessMode_Mode) *csipb.VolumeCapability {
	return &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
	}
}

// stripVolume deletes the volume object with its finalizers.
func stripVolume(ctx context.Context, w *survivors) error {
	name, err := w.volumeName(ctx)
	if err != nil {
		return err
	}
	volumes := w.client.CoreV1().PersistentVolumes()
	if err := volumes.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err = volumes.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// attachedTo waits until the driver's only volume is attached to exactly these nodes, by the driver's ids.
func attachedTo(nodes ...string) act {
	return func(ctx context.Context, w *survivors) error {
		return until(ctx, func() (string, error) {
			all := w.driver.Volumes()
			if len(all) != 1 || !slices.Equal(all[0].Nodes, nodes) {
				return fmt.Sprintf("the driver has %+v", all), nil
			}
			return "", nil
		})
	}
}

// outOfService declares a node out of service, or takes that back.
func outOfService(node string, dead bool) act {
	return func(ctx context.Context, w *survivors) error {
		taints := `null`
		if dead {
			taints = `[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]`
		}
		_, err := w.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(`{"spec":{"taints":`+taints+`}}`),
			metav1.PatchOptions{})
		return err
	}
}

// forgetPod deletes a Pod by force, because its node does not respond.
func forgetPod(name string) act {
	return func(ctx context.Context, w *survivors) error {
		return w.client.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	}
}

// unused has a node report that it uses nothing.
func unused(node string) act {
	return func(ctx context.Context, w *survivors) error {
		return w.says(ctx, node, map[string]any{"volumesInUse": []string{}})
	}
}

// publishUnasked attaches at the driver without an attachment, and does not wait.
func publishUnasked(nodeID string) act {
	return func(ctx context.Context, w *survivors) error {
		all := w.driver.Volumes()
		if len(all) != 1 {
			return errors.New("there is no volume")
		}
		_, err := w.driver.ControllerPublishVolume(ctx, &csipb.ControllerPublishVolumeRequest{
			VolumeId: all[0].ID, NodeId: nodeID,
			VolumeCapability: mounted(csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER),
		})
		return err
	}
}

func unpublishUnasked(nodeID string) act {
	return func(ctx context.Context, w *survivors) error {
		all := w.driver.Volumes()
		if len(all) != 1 {
			return errors.New("there is no volume")
		}
		_, err := w.driver.ControllerUnpublishVolume(ctx,
			&csipb.ControllerUnpublishVolumeRequest{VolumeId: all[0].ID, NodeId: nodeID})
		return err
	}
}
