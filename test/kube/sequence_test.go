package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// driverName is the driver of all volumes.
const driverName = "test.csi.example.com"

// sequence is a list of operations of users. Its objects have names of their own, so that many sequences
// can be played at the same time.
type sequence struct {
	seed uint64
	ops  []op
}

// op is one operation of a user, the same on both sides.
type op struct {
	text string
	do   func(ctx context.Context, s side, space string) error
	// restart says how the controllers are started anew around it.
	restart anew
}

func (s sequence) String() string {
	var b strings.Builder
	for i, o := range s.ops {
		fmt.Fprintf(&b, "  %d. %s%s\n", i+1, o.text, o.restart)
	}
	return b.String()
}

// dice draws the sequences. No size is drawn twice, because it is not specified which of two equal volumes
// a claim gets.
type dice struct {
	*rand.Rand
	// topology says that it matters where volumes and nodes are.
	topology bool

	volumes, claims, pods int
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

func draw(seed uint64, length int) sequence {
	d := &dice{Rand: newRand(seed)}
	s := sequence{seed: seed, ops: []op{
		newClass("fast", storagev1.VolumeBindingImmediate), newClass("late", storagev1.VolumeBindingWaitForFirstConsumer),
	}}
	for range length {
		s.ops = append(s.ops, d.op())
	}
	return s
}

// op is one operation of a user, the same on both sides.
func (d *dice) op() op {
	switch n := d.IntN(21); {
	case n < 6 || d.volumes == 0:
		return d.newVolume()
	case n < 11 || d.claims == 0:
		return d.newClaim()
	case n < 13:
		return deleteClaim(d.claim())
	case n < 15:
		return deleteVolume(d.volume())
	case n < 16:
		return changeVolume(d.volume(), "reclaim policy Delete", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	case n < 17:
		return changeVolume(d.volume(), "no claimRef", `{"spec":{"claimRef":null}}`)
	case n < 18:
		return d.newPod()
	default:
		return d.rareOp(n)
	}
}

func (d *dice) rareOp(n int) op {
	switch {
	case n < 19 && d.pods > 0:
		return deletePod(fmt.Sprint("p", d.IntN(d.pods)))
	case n < 20:
		return disturb()
	default:
		return reserve(d.volume(), d.claim())
	}
}

func (d *dice) volume() string { return fmt.Sprint("v", d.IntN(d.volumes+1)) }
func (d *dice) claim() string  { return d.claimName(d.IntN(d.claims + 1)) }

func pick[T any](d *dice, all ...T) T { return all[d.IntN(len(all))] }

// size returns another size for each volume of a sequence.
func (d *dice) size() resource.Quantity {
	return *resource.NewQuantity(int64(1+d.IntN(4))<<30+int64(d.volumes)<<20, resource.BinarySI)
}

func (d *dice) modes() []corev1.PersistentVolumeAccessMode {
	return pick(d, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod})
}

func (d *dice) volumeMode() *corev1.PersistentVolumeMode {
	return pick(d, nil, nil, nil, ptr.To(corev1.PersistentVolumeFilesystem), ptr.To(corev1.PersistentVolumeBlock))
}

func (d *dice) newVolume() op {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"tier": pick(d, "a", "b")}}}
	v.Spec = corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: d.size()}, AccessModes: d.modes(), VolumeMode: d.volumeMode(),
		StorageClassName:              pick(d, "fast", "fast", "late"),
		PersistentVolumeReclaimPolicy: pick(d, corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete),
	}
	if d.IntN(2) == 0 {
		v.Annotations = map[string]string{volume.AnnProvisionedBy: driverName}
	}
	switch d.IntN(10) {
	case 0, 1:
		v.Spec.ClaimRef = &corev1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1", Name: d.claimName(d.IntN(d.claims + 2)),
		}
	case 2:
		v.Spec.ClaimRef = &corev1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1", Name: d.claim(), UID: "11111111-2222-3333-4444-555555555555",
		}
	}
	name := fmt.Sprint("v", d.volumes)
	d.volumes++
	return op{
		text: fmt.Sprintf("make volume %s: %s", name, describeVolume(v)),
		do: func(ctx context.Context, s side, space string) error {
			v := v.DeepCopy()
			v.Name = space + "-" + name
			v.Spec.StorageClassName = space + "-" + v.Spec.StorageClassName
			v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: v.Name}
			if v.Spec.ClaimRef != nil {
				v.Spec.ClaimRef.Namespace = space
			}
			_, err := s.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
			return err
		},
	}
}

func describeVolume(v *corev1.PersistentVolume) string {
	s := fmt.Sprintf("%s %v class %s %s tier %s", v.Spec.Capacity.Storage(), v.Spec.AccessModes, v.Spec.StorageClassName,
		v.Spec.PersistentVolumeReclaimPolicy, v.Labels["tier"])
	if v.Spec.VolumeMode != nil {
		s += " " + string(*v.Spec.VolumeMode)
	}
	if v.Annotations != nil {
		s += " provisioned"
	}
	if r := v.Spec.ClaimRef; r != nil {
		s += fmt.Sprintf(" for %s uid %q", r.Name, r.UID)
	}
	return s
}

func (d *dice) newClaim() op {
	c := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: d.modes(), VolumeMode: d.volumeMode(),
		StorageClassName: ptr.To(pick(d, "fast", "fast", "fast", "late", "none")),
		Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: d.size()}},
	}}
	if d.IntN(5) == 0 {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "a"}}
	}
	if d.IntN(5) == 0 {
		c.Spec.VolumeName = fmt.Sprint("v", d.IntN(d.volumes+2))
	}
	name := d.claimName(d.claims)
	d.claims++
	text := fmt.Sprintf("make claim %s: %s %v class %s volume %q selects %v", name, c.Spec.Resources.Requests.Storage(),
		c.Spec.AccessModes, *c.Spec.StorageClassName, c.Spec.VolumeName, c.Spec.Selector != nil)
	if c.Spec.VolumeMode != nil {
		text += " " + string(*c.Spec.VolumeMode)
	}
	return op{text: text, do: func(ctx context.Context, s side, space string) error {
		c := c.DeepCopy()
		c.Name, c.Spec.StorageClassName = name, ptr.To(space+"-"+*c.Spec.StorageClassName)
		if c.Spec.VolumeName != "" {
			c.Spec.VolumeName = space + "-" + c.Spec.VolumeName
		}
		_, err := s.client.CoreV1().PersistentVolumeClaims(space).Create(ctx, c, metav1.CreateOptions{})
		return err
	}}
}

func (d *dice) newPod() op {
	name, claim := fmt.Sprint("p", d.pods), d.claim()
	d.pods++
	return op{
		text: "make pod " + name + " with claim " + claim,
		do: func(ctx context.Context, s side, space string) error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
				NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}},
			}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}}
			_, err := s.client.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
			return err
		},
	}
}

func newClass(name string, mode storagev1.VolumeBindingMode) op {
	return op{text: "make class " + name, do: func(ctx context.Context, s side, space string) error {
		_, err := s.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: space + "-" + name}, Provisioner: volume.NoProvisioner, VolumeBindingMode: &mode,
		}, metav1.CreateOptions{})
		return err
	}}
}

func deleteClaim(name string) op {
	return op{text: "delete claim " + name, do: func(ctx context.Context, s side, space string) error {
		return s.client.CoreV1().PersistentVolumeClaims(space).Delete(ctx, name, metav1.DeleteOptions{})
	}}
}

func deleteVolume(name string) op {
	return op{text: "delete volume " + name, do: func(ctx context.Context, s side, space string) error {
		return s.client.CoreV1().PersistentVolumes().Delete(ctx, space+"-"+name, metav1.DeleteOptions{})
	}}
}

func deletePod(name string) op {
	return op{text: "delete pod " + name, do: func(ctx context.Context, s side, space string) error {
		return s.client.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	}}
}

func changeVolume(name, what, patch string) op {
	return op{text: "change volume " + name + ": " + what, do: func(ctx context.Context, s side, space string) error {
		_, err := s.client.CoreV1().PersistentVolumes().Patch(ctx, space+"-"+name, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		return err
	}}
}

// reserve does what the scheduler does for a late-binding claim.
func reserve(v, claim string) op {
	return op{
		text: "reserve volume " + v + " for claim " + claim,
		do: func(ctx context.Context, s side, space string) error {
			pvc, err := s.client.CoreV1().PersistentVolumeClaims(space).Get(ctx, claim, metav1.GetOptions{})
			if err != nil {
				return err
			}
			pv, err := s.client.CoreV1().PersistentVolumes().Get(ctx, space+"-"+v, metav1.GetOptions{})
			if err != nil || pv.Spec.ClaimRef != nil || pvc.Spec.VolumeName != "" {
				return err
			}
			pv.Spec.ClaimRef = &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: space, Name: claim, UID: pvc.UID,
			}
			metav1.SetMetaDataAnnotation(&pv.ObjectMeta, volume.AnnBoundByController, "yes")
			_, err = s.client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{})
			return err
		},
	}
}

// refused says whether the API may refuse an operation. It does so for good reasons, and on both sides.
func refused(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsForbidden(err)
}

func conflict(err error) bool { return apierrors.IsConflict(err) }
