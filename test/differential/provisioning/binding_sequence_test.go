package provisioning

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
)

func draw(seed uint64, length int) sequence {
	d := &provisioningDice{dice: differential.NewDice(seed)}
	s := sequence{Seed: seed, Ops: []op{
		newClass("fast", storagev1.VolumeBindingImmediate), newClass("late", storagev1.VolumeBindingWaitForFirstConsumer),
	}}
	for range length {
		s.Ops = append(s.Ops, d.op())
	}
	return s
}

// op is one operation of a user, the same on both sides.
func (d *provisioningDice) op() op {
	switch n := d.IntN(21); {
	case n < 6 || d.Volumes == 0:
		return d.newVolume()
	case n < 11 || d.Claims == 0:
		return d.newClaim()
	case n < 13:
		return differential.DeleteClaim(d.claim())
	case n < 15:
		return differential.DeleteVolume(d.Volume())
	case n < 16:
		return changeVolume(d.Volume(), "reclaim policy Delete", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	case n < 17:
		return changeVolume(d.Volume(), "no claimRef", `{"spec":{"claimRef":null}}`)
	case n < 18:
		return d.newPod()
	default:
		return d.rareOp(n)
	}
}

func (d *provisioningDice) rareOp(n int) op {
	switch {
	case n < 19 && d.Pods > 0:
		return differential.DeletePod(fmt.Sprint("p", d.IntN(d.Pods)))
	case n < 20:
		return differential.Disturb()
	default:
		return reserve(d.Volume(), d.claim())
	}
}
func (d *provisioningDice) claim() string { return d.claimName(d.IntN(d.Claims + 1)) }

// size returns another size for each volume of a sequence.
func (d *provisioningDice) size() resource.Quantity {
	return *resource.NewQuantity(int64(1+d.IntN(4))<<30+int64(d.Volumes)<<20, resource.BinarySI)
}

func (d *provisioningDice) modes() []corev1.PersistentVolumeAccessMode {
	return differential.Pick(d, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod})
}

func (d *provisioningDice) newVolume() op {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"tier": differential.Pick(d,
		"a", "b")}}}
	v.Spec = corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: d.size()}, AccessModes: d.modes(), VolumeMode: d.VolumeMode(),
		StorageClassName: differential.Pick(d, "fast", "fast", "late"),
		PersistentVolumeReclaimPolicy: differential.Pick(d, corev1.PersistentVolumeReclaimRetain,
			corev1.PersistentVolumeReclaimDelete),
	}
	if d.IntN(2) == 0 {
		v.Annotations = map[string]string{volume.AnnProvisionedBy: differential.DriverName}
	}
	switch d.IntN(10) {
	case 0, 1:
		v.Spec.ClaimRef = &corev1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1", Name: d.claimName(d.IntN(d.Claims + 2)),
		}
	case 2:
		v.Spec.ClaimRef = &corev1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1", Name: d.claim(), UID: "11111111-2222-3333-4444-555555555555",
		}
	}
	name := fmt.Sprint("v", d.Volumes)
	d.Volumes++
	return op{
		Text: fmt.Sprintf("make volume %s: %s", name, describeVolume(v)),
		Do: func(ctx context.Context, s side, space string) error {
			v := v.DeepCopy()
			v.Name = space + "-" + name
			v.Spec.StorageClassName = space + "-" + v.Spec.StorageClassName
			v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: differential.DriverName, VolumeHandle: v.Name}
			if v.Spec.ClaimRef != nil {
				v.Spec.ClaimRef.Namespace = space
			}
			_, err := s.Client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
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

func (d *provisioningDice) newClaim() op {
	c := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: d.modes(), VolumeMode: d.VolumeMode(),
		StorageClassName: ptr.To(differential.Pick(d, "fast", "fast", "fast", "late", "none")),
		Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: d.size()}},
	}}
	if d.IntN(5) == 0 {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "a"}}
	}
	if d.IntN(5) == 0 {
		c.Spec.VolumeName = fmt.Sprint("v", d.IntN(d.Volumes+2))
	}
	name := d.claimName(d.Claims)
	d.Claims++
	text := fmt.Sprintf("make claim %s: %s %v class %s volume %q selects %v", name, c.Spec.Resources.Requests.Storage(),
		c.Spec.AccessModes, *c.Spec.StorageClassName, c.Spec.VolumeName, c.Spec.Selector != nil)
	if c.Spec.VolumeMode != nil {
		text += " " + string(*c.Spec.VolumeMode)
	}
	return op{Text: text, Do: func(ctx context.Context, s side, space string) error {
		c := c.DeepCopy()
		c.Name, c.Spec.StorageClassName = name, ptr.To(space+"-"+*c.Spec.StorageClassName)
		if c.Spec.VolumeName != "" {
			c.Spec.VolumeName = space + "-" + c.Spec.VolumeName
		}
		_, err := s.Client.CoreV1().PersistentVolumeClaims(space).Create(ctx, c, metav1.CreateOptions{})
		return err
	}}
}

func (d *provisioningDice) newPod() op {
	name, claim := fmt.Sprint("p", d.Pods), d.claim()
	d.Pods++
	return op{
		Text: "make pod " + name + " with claim " + claim,
		Do: func(ctx context.Context, s side, space string) error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
				NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}},
			}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}}
			_, err := s.Client.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
			return err
		},
	}
}

func newClass(name string, mode storagev1.VolumeBindingMode) op {
	return op{Text: "make class " + name, Do: func(ctx context.Context, s side, space string) error {
		_, err := s.Client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: space + "-" + name}, Provisioner: volume.NoProvisioner, VolumeBindingMode: &mode,
		}, metav1.CreateOptions{})
		return err
	}}
}

func changeVolume(name, what, patch string) op {
	return op{Text: "change volume " + name + ": " + what, Do: func(ctx context.Context, s side, space string) error {
		_, err := s.Client.CoreV1().PersistentVolumes().Patch(ctx, space+"-"+name, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		return err
	}}
}

// reserve does the scheduler's part for a late-binding claim.
func reserve(v, claim string) op {
	return op{
		Text: "reserve volume " + v + " for claim " + claim,
		Do: func(ctx context.Context, s side, space string) error {
			pvc, err := s.Client.CoreV1().PersistentVolumeClaims(space).Get(ctx, claim, metav1.GetOptions{})
			if err != nil {
				return err
			}
			pv, err := s.Client.CoreV1().PersistentVolumes().Get(ctx, space+"-"+v, metav1.GetOptions{})
			if err != nil || pv.Spec.ClaimRef != nil || pvc.Spec.VolumeName != "" {
				return err
			}
			pv.Spec.ClaimRef = &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: space, Name: claim, UID: pvc.UID,
			}
			metav1.SetMetaDataAnnotation(&pv.ObjectMeta, volume.AnnBoundByController, "yes")
			_, err = s.Client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{})
			return err
		},
	}
}
