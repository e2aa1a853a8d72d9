package kube

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

const (
	annSecret = "example.com/secret"
	prefixed  = "csi.storage.k8s.io/"
)

// drawProvisioning draws what users, schedulers and drivers do around volumes
// that are made when they are asked for.
func drawProvisioning(seed uint64, length int) sequence {
	return (&dice{Rand: newRand(seed)}).provisioning(seed, length)
}

func (d *dice) provisioning(seed uint64, length int) sequence {
	s := sequence{seed: seed, ops: []op{
		d.newStorageClass("fast"), d.newStorageClass("late"), d.newSecret("s0"), newAttributes("gold"),
		newAttributes("strange"),
	}}
	if d.IntN(3) == 0 {
		s.ops = append(s.ops, d.fault("CreateVolume"))
	}
	s.ops = append(s.ops, d.newDynamicClaim())
	for range length {
		s.ops = append(s.ops, d.provisioningOp())
	}
	return s
}

func (d *dice) provisioningOp() op {
	return d.oneOf([]weighted{
		{8, d.newDynamicClaim},
		{5, func() op { return deleteClaim(d.made()) }},
		{4, func() op { return schedule(d.made(), pick(d, "", d.node(), d.node(), d.node())) }},
		{3, d.changeMadeVolume},
		{3, func() op { return d.fault("CreateVolume") }},
		{1, d.wrongSize},
		{2, func() op { return d.fault("DeleteVolume") }},
		{3, func() op { return heal(d.Int()) }},
		{2, d.changeSecret},
		{1, d.newPod},
		{1, func() op { return deletePod(fmt.Sprint("p", d.IntN(d.pods+1))) }},
		{2, d.attach},
		{1, d.changeClaim},
		{1, d.newVolume},
		{1, d.changeClass},
		{1, disturb},
		{1, d.changeAttributes},
		{1, d.wantAttributes},
		{2, d.newSnapshot},
		{1, d.changeSnapshot},
	})
}

// made returns a claim that was made.
func (d *dice) made() string { return d.claimName(d.IntN(d.claims)) }

// newStorageClass makes a class; its name says when it binds.
func (d *dice) newStorageClass(name string) op {
	class := &storagev1.StorageClass{
		Provisioner: driverName, Parameters: d.parameters(name == "odd" || d.IntN(4) == 0),
		MountOptions:      pick(d, nil, nil, []string{"noatime"}, []string{"nodev", "ro"}),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate), AllowVolumeExpansion: ptr.To(true),
		AllowedTopologies: d.allowed(),
		ReclaimPolicy: pick(d, nil, ptr.To(corev1.PersistentVolumeReclaimDelete),
			ptr.To(corev1.PersistentVolumeReclaimRetain)),
	}
	if name == "late" {
		class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	}
	if name == "odd" {
		class.Provisioner = pick(d, driverName, "other.example.com", volume.NoProvisioner)
	}
	text := fmt.Sprintf("make class %s of %s: parameters %v, mount options %v", name, class.Provisioner, class.Parameters,
		class.MountOptions)
	if class.ReclaimPolicy != nil {
		text += ", " + string(*class.ReclaimPolicy)
	}
	if class.AllowedTopologies != nil {
		text += fmt.Sprintf(", allowed %v", class.AllowedTopologies)
	}
	return op{text: text, do: func(ctx context.Context, s side, space string) error {
		class := class.DeepCopy()
		class.Name = space + "-" + name
		class.Parameters[parameterSpace] = space
		_, err := s.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
		return err
	}}
}

// parameters draws those of a class, which make no sense only if they are wild.
func (d *dice) parameters(wild bool) map[string]string {
	all := map[string]string{}
	if d.IntN(3) == 0 {
		all["tier"] = pick(d, "gold", "")
	}
	if d.IntN(3) == 0 {
		maps.Copy(all, pick(d, map[string]string{"fstype": "ext4"}, map[string]string{"FsType": "xfs"},
			map[string]string{prefixed + "fstype": "xfs"}))
	}
	if wild && d.IntN(4) == 0 {
		all[pick(d, "fstype", prefixed+"fstype", prefixed+"pvc/name", prefixed+"unknown")] = "ext4"
	}
	for _, purpose := range []string{
		"", "provisioner-", "controller-publish-", "node-stage-", "node-publish-", "controller-expand-", "node-expand-",
	} {
		if d.IntN(8) == 0 || purpose == "provisioner-" && d.IntN(4) == 0 {
			d.secret(all, prefixed+purpose+"secret-name", prefixed+purpose+"secret-namespace", wild)
		}
	}
	return all
}

func (d *dice) secret(all map[string]string, name, namespace string, wild bool) {
	if !wild {
		all[name] = pick(d, "s0", "s0", "${pvc.name}", "${pvc.annotations['"+annSecret+"']}")
		all[namespace] = pick(d, "${pvc.namespace}", "${pvc.namespace}", "${pvc.namespace}", "default")
		return
	}
	if d.IntN(10) > 0 {
		all[name] = d.secretName()
	}
	if d.IntN(10) > 0 {
		all[namespace] = d.secretNamespace()
	}
}

func (d *dice) secretName() string {
	return pick(d, "s0", "s1", "x-${pvc.namespace}", "${pv.name}", "${pvc.annotations['none']}", "${pvc.uid}", "",
		"No name", "a$$b", "${pvc.name", "$", "$x")
}

func (d *dice) secretNamespace() string {
	return pick(d, "${pvc.namespace}", "${pvc.namespace}", "${pvc.namespace}", "default", "${pvc.name}", "",
		"a.b", "${pv.name}")
}

func (d *dice) newDynamicClaim() op {
	c := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: d.modes(), VolumeMode: d.volumeMode(),
		StorageClassName: ptr.To(pick(d, "fast", "fast", "fast", "late", "late", "odd")),
		Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: d.size()}},
	}}
	if d.IntN(3) == 0 {
		c.Annotations = map[string]string{annSecret: pick(d, "s0", "s1", "Not a name")}
	}
	c.Spec.VolumeAttributesClassName = d.attributes()
	if d.IntN(15) == 0 {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "a"}}
	}
	switch d.IntN(22) {
	case 20, 21:
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{
			APIGroup: ptr.To(volume.GroupSnapshot), Kind: volume.KindSnapshot, Name: d.snapshotName(),
		}
	case 0:
		c.Spec.VolumeName = fmt.Sprint("v", d.IntN(d.volumes+1))
	case 1:
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To("example.com"), Kind: "Populator", Name: "p"}
	case 2, 3, 4, 5:
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: d.claim()}
		c.Spec.Resources.Requests[corev1.ResourceStorage] = pick(d, resource.MustParse("8Gi"), d.size())
	}
	name := d.claimName(d.claims)
	d.claims++
	return op{
		text: "make claim " + name + ": " + describeClaim(c),
		do: func(ctx context.Context, s side, space string) error {
			c := c.DeepCopy()
			c.Name, c.Spec.StorageClassName = name, ptr.To(space+"-"+*c.Spec.StorageClassName)
			if c.Spec.VolumeAttributesClassName != nil {
				c.Spec.VolumeAttributesClassName = ptr.To(space + "-" + *c.Spec.VolumeAttributesClassName)
			}
			if c.Spec.VolumeName != "" {
				c.Spec.VolumeName = space + "-" + c.Spec.VolumeName
			}
			_, err := s.client.CoreV1().PersistentVolumeClaims(space).Create(ctx, c, metav1.CreateOptions{})
			return err
		},
	}
}

func describeClaim(c *corev1.PersistentVolumeClaim) string {
	s := fmt.Sprintf("%s %v class %s", c.Spec.Resources.Requests.Storage(), c.Spec.AccessModes, *c.Spec.StorageClassName)
	if c.Spec.VolumeMode != nil {
		s += " " + string(*c.Spec.VolumeMode)
	}
	if c.Spec.VolumeName != "" {
		s += " volume " + c.Spec.VolumeName
	}
	if c.Spec.VolumeAttributesClassName != nil {
		s += " attributes " + *c.Spec.VolumeAttributesClassName
	}
	if c.Spec.Selector != nil {
		s += " selects"
	}
	if c.Spec.DataSource != nil {
		s += " copies " + c.Spec.DataSource.Kind + " " + c.Spec.DataSource.Name
	}
	if c.Spec.DataSourceRef != nil {
		s += " filled by a " + c.Spec.DataSourceRef.Kind
	}
	if c.Annotations != nil {
		s += fmt.Sprintf(" annotations %v", c.Annotations)
	}
	return s
}

// schedule does what the scheduler does when it has found a node, or gives it
// up.
func schedule(claim, to string) op {
	text, node := fmt.Sprintf("select node %s for claim %s", to, claim), strconv.Quote(to)
	if to == "" {
		text, node = "take the node from claim "+claim, "null"
	}
	return patchClaim(claim, text, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, volume.AnnSelectedNode, node))
}

func patchClaim(claim, text, patch string) op {
	return op{text: text, do: func(ctx context.Context, s side, space string) error {
		_, err := s.client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, claim, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		return err
	}}
}

func (d *dice) changeClaim() op {
	claim := d.made()
	if d.IntN(2) == 0 {
		return patchClaim(claim, "let claim "+claim+" ask for 9Gi", `{"spec":{"resources":{"requests":{"storage":"9Gi"}}}}`)
	}
	secret := pick(d, "s0", "s1")
	return patchClaim(claim, "annotate claim "+claim+" with secret "+secret,
		fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, annSecret, secret))
}

// changeMadeVolume does something to the volume that was made for a claim.
func (d *dice) changeMadeVolume() op {
	claim := d.made()
	patch := func(text, patch string) op {
		return op{text: text + claim, do: func(ctx context.Context, s side, space string) error {
			_, err := s.client.CoreV1().PersistentVolumes().Patch(ctx, s.madeFor(space, claim), types.MergePatchType,
				[]byte(patch), metav1.PatchOptions{})
			return err
		}}
	}
	switch d.IntN(5) {
	case 0:
		return patch("retain the volume of claim ", `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	case 1, 2:
		return patch("let the volume be deleted with claim ", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	case 3:
		return patch("take the claimRef from the volume of claim ", `{"spec":{"claimRef":null}}`)
	}
	return op{text: "delete the volume of claim " + claim, do: func(ctx context.Context, s side, space string) error {
		return s.client.CoreV1().PersistentVolumes().Delete(ctx, s.madeFor(space, claim), metav1.DeleteOptions{})
	}}
}

// madeFor returns the name of the volume that is made for a claim.
func (s side) madeFor(space, claim string) string {
	for uid, c := range s.memory.claims {
		if c == (claimName{space, claim}) {
			return s.memory.volume(uid)
		}
	}
	return "none"
}

func (d *dice) fault(method string) op {
	f := fault{times: pick(d, 1, 2, 0), code: pick(d, codes.Internal, codes.Internal, codes.ResourceExhausted,
		codes.ResourceExhausted, codes.InvalidArgument, codes.OutOfRange, codes.NotFound,
		codes.AlreadyExists, codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled)}
	if f.code == codes.Unavailable || f.code == codes.DeadlineExceeded {
		f.after = d.IntN(2) == 0
	}
	text := fmt.Sprintf("let the driver answer %s with %s, %d times a volume (0 is always), done nevertheless: %v", method,
		f.code, f.times, f.after)
	return op{text: text, do: func(_ context.Context, s side, space string) error {
		s.storage.fail(space, method, f)
		return nil
	}}
}

func (d *dice) wrongSize() op {
	f := fault{times: pick(d, 1, 2, 0), told: pick(d, half, half, nothing)}
	text := fmt.Sprintf("let the driver answer CreateVolume with %s, %d times a volume (0 is always)", f.told, f.times)
	return op{text: text, do: func(_ context.Context, s side, space string) error {
		s.storage.fail(space, "CreateVolume", f)
		return nil
	}}
}

// heal ends the faults. Users edit their claims and volumes then, so that
// nobody waits for the end of a long pause.
func heal(mark int) op {
	return op{text: "let the driver work again", do: func(ctx context.Context, s side, space string) error {
		s.storage.heal(space)
		return s.touch(ctx, space, mark)
	}}
}

func (s side) touch(ctx context.Context, space string, mark int) error {
	switch {
	case s.attaching:
		return s.touchNodes(ctx, space, mark)
	case s.snapshotting:
		return s.touchSnapshots(ctx, mark)
	case s.modifying:
		return s.touchClaims(ctx, space, mark)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, mark)
	for uid, c := range s.memory.claims {
		if c.space != space {
			continue
		}
		if _, err := s.client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, c.name, types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil && !refused(err) {
			return err
		}
		if _, err := s.client.CoreV1().PersistentVolumes().Patch(ctx, s.memory.volume(uid), types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil && !refused(err) {
			return err
		}
	}
	return nil
}

func (d *dice) changeSecret() op {
	name := pick(d, "s0", "s0", "s1", "c0")
	if d.IntN(2) == 0 {
		return d.newSecret(name)
	}
	return deleteSecret(name)
}

func deleteSecret(name string) op {
	return op{text: "delete secret " + name, do: func(ctx context.Context, s side, space string) error {
		return s.client.CoreV1().Secrets(space).Delete(ctx, name, metav1.DeleteOptions{})
	}}
}

func (d *dice) newSecret(name string) op {
	value, mark := fmt.Sprint(d.IntN(100)), d.Int()
	return op{
		text: "make secret " + name + ", touch the claims",
		do: func(ctx context.Context, s side, space string) error {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"key": []byte(value)}}
			if _, err := s.client.CoreV1().Secrets(space).Create(ctx, secret, metav1.CreateOptions{}); err != nil &&
				!refused(err) {
				return err
			}
			return s.touch(ctx, space, mark)
		},
	}
}

// attach makes or deletes the record that the volume of a claim is attached.
func (d *dice) attach() op {
	claim := d.made()
	if d.IntN(2) == 0 {
		return op{text: "detach the volume of claim " + claim, do: func(ctx context.Context, s side, space string) error {
			return s.client.StorageV1().VolumeAttachments().Delete(ctx, space+"-"+claim, metav1.DeleteOptions{})
		}}
	}
	return op{text: "attach the volume of claim " + claim, do: func(ctx context.Context, s side, space string) error {
		a := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: space + "-" + claim},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: driverName, NodeName: "n1",
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(s.madeFor(space, claim))},
			},
		}
		_, err := s.client.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
		return err
	}}
}

func (d *dice) changeClass() op {
	name := pick(d, "fast", "late", "odd", "odd")
	if d.IntN(2) == 0 {
		return d.newStorageClass(name)
	}
	return op{text: "delete class " + name, do: func(ctx context.Context, s side, space string) error {
		return s.client.StorageV1().StorageClasses().Delete(ctx, space+"-"+name, metav1.DeleteOptions{})
	}}
}
