package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
)

func scenarios() []scenario {
	immediate, late := storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	return append(slices.Concat(attachScenarios(), snapshotScenarios(), groupScenarios()), []scenario{
		{name: "a claim comes and goes", prepare: classOf(immediate), play: play(makeClaim, claimIs(corev1.ClaimBound),
			deleteClaim)},
		{name: "a claim is deleted while its volume is made", prepare: classOf(immediate), play: play(deletedOnTheWay(false),
			makeClaim, noClaim)},
		{
			name: "a claim and its class are deleted while its volume is made", prepare: classOf(immediate),
			play: play(deletedOnTheWay(true), makeClaim, noClaim),
		},
		{
			name: "a claim is deleted while its volume is made and denied", prepare: classOf(immediate),
			play: play(deniedOnTheWay(codes.Internal), makeClaim, noClaim),
		},
		{name: "the driver is full", prepare: classOf(immediate), play: play(fullAtFirst, makeClaim,
			claimIs(corev1.ClaimBound), deleteClaim)},
		{name: "the driver does not say how it went", prepare: classOf(immediate), play: play(vagueAtFirst, makeClaim,
			claimIs(corev1.ClaimBound), deleteClaim)},
		{
			name: "the data is kept", prepare: keepingClass,
			play: play(makeClaim, claimIs(corev1.ClaimBound), deleteClaim, volumeIs(corev1.VolumeReleased)),
			left: 1, clean: removeKept,
		},
		{
			name: "a claim is deleted while its volume is made that is to be kept", prepare: keepingClass,
			play: play(deletedOnTheWay(false), makeClaim, noClaim, volumeIs(corev1.VolumeReleased)), left: 1, clean: removeKept,
		},
		{
			name: "the data is kept after all, and forgotten", prepare: classOf(immediate),
			play: play(makeClaim, claimIs(corev1.ClaimBound), keep, deleteClaim, volumeIs(corev1.VolumeReleased),
				deleteVolume),
			orphans: 1, clean: removeOrphan,
		},
		{
			name: "a claim is deleted while it is copied", prepare: classOf(immediate),
			play: play(makeClaim, claimIs(corev1.ClaimBound), deletedOnTheWay(false), makeCopy,
				namedIs("copy", corev1.ClaimBound), noClaim, deleteNamed("copy")),
		},
		{name: "the volume is deleted first", prepare: classOf(immediate), play: play(makeClaim, claimIs(corev1.ClaimBound),
			deleteVolume, deleteClaim)},
		{name: "a consumer comes and goes", prepare: classOf(late), play: play(makeClaim, makePod("a", ""), mayMount("a"),
			removePod("a"), deleteClaim)},
		{
			name: "a consumer moves to another node", prepare: classOf(late),
			play: play(makeClaim, makePod("a", "n1"), mayMount("a"), makePod("b", "n2"), removePod("a"), mayMount("b"),
				removePod("b"), deleteClaim),
		},
		{
			name: "a Pod's own volume comes and goes with it", prepare: classOf(immediate),
			play: play(makeScratchPod("a", "n1"), appears("a-v"), namedIs("a-v", corev1.ClaimBound), mayMount("a"),
				removePod("a"), noNamed("a-v")),
		},
		{name: "a claim grows", prepare: classOf(immediate), play: play(makeClaim, claimIs(corev1.ClaimBound), grow,
			deleteClaim)},
	}...)
}

// act is an action of users or nodes, or a wait.
type act func(ctx context.Context, w *survivors) error

func play(acts ...act) act {
	return func(ctx context.Context, w *survivors) error {
		for i, a := range acts {
			if err := a(ctx, w); err != nil {
				return fmt.Errorf("act %d: %w", i+1, err)
			}
		}
		return nil
	}
}

func classOf(mode storagev1.VolumeBindingMode) act {
	return makeClass(mode, corev1.PersistentVolumeReclaimDelete)
}

func keepingClass(ctx context.Context, w *survivors) error {
	return makeClass(storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimRetain)(ctx, w)
}

func makeClass(mode storagev1.VolumeBindingMode, reclaim corev1.PersistentVolumeReclaimPolicy) act {
	return func(ctx context.Context, w *survivors) error {
		_, err := w.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: w.driver.Name(), VolumeBindingMode: &mode,
			ReclaimPolicy: &reclaim, AllowVolumeExpansion: ptr.To(true),
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
}

func makeClaim(ctx context.Context, w *survivors) error { return claimFrom("c", nil)(ctx, w) }

// makeCopy creates a claim that clones the first one.
func makeCopy(ctx context.Context, w *survivors) error {
	return claimFrom("copy", &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "c"})(ctx, w)
}

func claimFrom(name string, source *corev1.TypedLocalObjectReference, modes ...corev1.PersistentVolumeAccessMode) act {
	if len(modes) == 0 {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return func(ctx context.Context, w *survivors) error {
		_, err := w.client.CoreV1().PersistentVolumeClaims(space).Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: ptr.To(class), AccessModes: modes, DataSource: source,
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				},
			},
		}, metav1.CreateOptions{})
		return err
	}
}

// once sets what the driver does at the first call of a method, whichever life makes it.
func (w *survivors) once(method string, do func() csitest.Action) {
	var done atomic.Bool
	w.driver.OnCall(method, func(int, any) csitest.Action {
		if done.Swap(true) {
			return csitest.Action{}
		}
		return do()
	})
}

// deletedOnTheWay deletes the claim, and possibly its class, while CreateVolume is in flight.
func deletedOnTheWay(classToo bool) act { return endedOnTheWay(classToo, csitest.Action{}) }

// deniedOnTheWay does the same with a driver that creates the volume and returns an error.
func deniedOnTheWay(code codes.Code) act {
	return endedOnTheWay(false, csitest.Action{After: true, Err: status.Error(code, "failed, or not")})
}

func endedOnTheWay(classToo bool, answer csitest.Action) act {
	return func(ctx context.Context, w *survivors) error {
		w.once("CreateVolume", func() csitest.Action {
			err := w.client.CoreV1().PersistentVolumeClaims(space).Delete(ctx, "c", metav1.DeleteOptions{})
			if classToo {
				err = errors.Join(err, w.client.StorageV1().StorageClasses().Delete(ctx, class, metav1.DeleteOptions{}))
			}
			if err != nil {
				w.faults <- err.Error()
			}
			return answer
		})
		return nil
	}
}

func fullAtFirst(_ context.Context, w *survivors) error {
	w.once("CreateVolume", func() csitest.Action {
		return csitest.Action{Err: status.Error(codes.ResourceExhausted, "full")}
	})
	return nil
}

// vagueAtFirst has the driver create the volume and return that the call is not complete.
func vagueAtFirst(_ context.Context, w *survivors) error {
	w.once("CreateVolume", func() csitest.Action {
		return csitest.Action{After: true, Err: status.Error(codes.DeadlineExceeded, "it takes long")}
	})
	return nil
}

func grow(ctx context.Context, w *survivors) error {
	patch := []byte(`{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	if _, err := w.client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, "c", types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		return err
	}
	want := resource.MustParse("2Gi")
	return until(ctx, func() (string, error) {
		vs := w.driver.Volumes()
		if len(vs) != 1 || vs[0].Bytes != want.Value() {
			return fmt.Sprintf("the driver has %+v", vs), nil
		}
		v, err := w.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil || len(v.Items) != 1 || v.Items[0].Spec.Capacity.Storage().Cmp(want) != 0 {
			return "the volume object does not say its size", err
		}
		return "", nil
	})
}

func deleteClaim(ctx context.Context, w *survivors) error { return deleteNamed("c")(ctx, w) }

func deleteNamed(name string) act {
	return func(ctx context.Context, w *survivors) error {
		return errors.Join(w.client.CoreV1().PersistentVolumeClaims(space).Delete(ctx, name, metav1.DeleteOptions{}),
			noNamed(name)(ctx, w))
	}
}

func deleteVolume(ctx context.Context, w *survivors) error {
	name, err := w.volumeName(ctx)
	if err != nil {
		return err
	}
	return w.client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{})
}

// keep changes the volume's reclaim policy to Retain.
func keep(ctx context.Context, w *survivors) error {
	return w.policy(ctx, corev1.PersistentVolumeReclaimRetain)
}

// removeOrphan deletes a volume at the driver that the API does not know.
func removeOrphan(ctx context.Context, w *survivors) error {
	all := w.driver.Volumes()
	if len(all) != 1 {
		return fmt.Errorf("the driver has %v: the data are lost", all)
	}
	_, err := w.driver.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: all[0].ID})
	return err
}

// removeKept deletes a retained volume as an administrator does: the object, and then the storage.
func removeKept(ctx context.Context, w *survivors) error {
	return w.policy(ctx, corev1.PersistentVolumeReclaimDelete)
}

func (w *survivors) policy(ctx context.Context, policy corev1.PersistentVolumeReclaimPolicy) error {
	patch := fmt.Appendf(nil, `{"spec":{"persistentVolumeReclaimPolicy":%q}}`, policy)
	name, err := w.volumeName(ctx)
	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (w *survivors) volumeName(ctx context.Context) (string, error) {
	all, err := w.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	if len(all.Items) != 1 {
		return "", fmt.Errorf("there are %d volumes", len(all.Items))
	}
	return all.Items[0].Name, nil
}

func makePod(name, node string) act {
	return podOf(name, node, corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	})
}

// makeScratchPod creates a Pod with a generic ephemeral volume.
func makeScratchPod(name, node string) act {
	template := &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To(class), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		},
	}}
	return podOf(name, node, corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: template}})
}

func podOf(name, node string, source corev1.VolumeSource) act {
	return func(ctx context.Context, w *survivors) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}}
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
		_, err := w.client.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}
}

// mayMount waits until the volume is attached to the node of a Pod, and reports it as in use.
func mayMount(pod string) act {
	return func(ctx context.Context, w *survivors) error {
		var node *corev1.Node
		err := until(ctx, func() (string, error) {
			p, err := w.client.CoreV1().Pods(space).Get(ctx, pod, metav1.GetOptions{})
			if err != nil || p.Spec.NodeName == "" {
				return "pod " + pod + " has no node", err
			}
			if node, err = w.client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{}); err != nil ||
				len(node.Status.VolumesAttached) == 0 {
				return "node " + p.Spec.NodeName + " may mount nothing", err
			}
			return "", nil
		})
		if err != nil {
			return err
		}
		return w.says(ctx, node.Name, map[string]any{
			"volumesInUse": []corev1.UniqueVolumeName{node.Status.VolumesAttached[0].Name},
		})
	}
}

// removePod deletes a Pod as its node's agent does, and reports that no volume is in use.
func removePod(pod string) act {
	return func(ctx context.Context, w *survivors) error {
		p, err := w.client.CoreV1().Pods(space).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := w.client.CoreV1().Pods(space).Delete(ctx, pod,
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			return err
		}
		return w.says(ctx, p.Spec.NodeName, map[string]any{"volumesInUse": []string{}})
	}
}
