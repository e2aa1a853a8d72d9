package provisioning

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
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

const (
	annSecret = "example.com/secret"
	prefixed  = "csi.storage.k8s.io/"
)

// provisioningDice draws the sequences about claims and their volumes.
type provisioningDice struct {
	*dice
	// topology says that it matters where volumes and nodes are.
	topology bool
}

// drawProvisioning draws actions of users, schedulers and drivers on dynamically provisioned volumes.
func drawProvisioning(seed uint64, length int) sequence {
	return (&provisioningDice{dice: differential.NewDice(seed)}).provisioning(seed, length)
}

func (d *provisioningDice) provisioning(seed uint64, length int) sequence {
	s := sequence{Seed: seed, Ops: []op{
		d.newStorageClass("fast"), d.newStorageClass("late"), d.NewSecret("s0"), differential.NewAttributes("gold"),
		differential.NewAttributes("strange"),
	}}
	if d.IntN(3) == 0 {
		s.Ops = append(s.Ops, d.fault("CreateVolume"))
	}
	s.Ops = append(s.Ops, d.newDynamicClaim())
	for range length {
		s.Ops = append(s.Ops, d.provisioningOp())
	}
	return s
}

func (d *provisioningDice) provisioningOp() op {
	return d.OneOf([]differential.Weighted{
		{Often: 8, Draw: d.newDynamicClaim},
		{Often: 5, Draw: func() op { return differential.DeleteClaim(d.made()) }},
		{Often: 4, Draw: func() op { return schedule(d.made(), differential.Pick(d, "", d.node(), d.node(), d.node())) }},
		{Often: 3, Draw: d.changeMadeVolume},
		{Often: 3, Draw: func() op { return d.fault("CreateVolume") }},
		{Often: 1, Draw: d.wrongSize},
		{Often: 2, Draw: func() op { return d.fault("DeleteVolume") }},
		{Often: 3, Draw: func() op { return differential.Heal(d.Int()) }},
		{Often: 2, Draw: d.ChangeSecret},
		{Often: 1, Draw: d.newPod},
		{Often: 1, Draw: func() op { return differential.DeletePod(fmt.Sprint("p", d.IntN(d.Pods+1))) }},
		{Often: 2, Draw: d.attach},
		{Often: 1, Draw: d.changeClaim},
		{Often: 1, Draw: d.newVolume},
		{Often: 1, Draw: d.changeClass},
		{Often: 1, Draw: differential.Disturb},
		{Often: 1, Draw: d.changeAttributes},
		{Often: 1, Draw: d.wantAttributes},
		{Often: 2, Draw: d.newSnapshot},
		{Often: 1, Draw: d.changeSnapshot},
	})
}

// made returns a claim that was made.
func (d *provisioningDice) made() string { return d.claimName(d.IntN(d.Claims)) }

// newStorageClass creates a class; its name shows when it binds.
func (d *provisioningDice) newStorageClass(name string) op {
	class := &storagev1.StorageClass{
		Provisioner: differential.DriverName, Parameters: d.parameters(name == "odd" || d.IntN(4) == 0),
		MountOptions:      differential.Pick(d, nil, nil, []string{"noatime"}, []string{"nodev", "ro"}),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate), AllowVolumeExpansion: ptr.To(true),
		AllowedTopologies: d.allowed(),
		ReclaimPolicy: differential.Pick(d, nil, ptr.To(corev1.PersistentVolumeReclaimDelete),
			ptr.To(corev1.PersistentVolumeReclaimRetain)),
	}
	if name == "late" {
		class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	}
	if name == "odd" {
		class.Provisioner = differential.Pick(d, differential.DriverName, "other.example.com", volume.NoProvisioner)
	}
	text := fmt.Sprintf("make class %s of %s: parameters %v, mount options %v", name, class.Provisioner, class.Parameters,
		class.MountOptions)
	if class.ReclaimPolicy != nil {
		text += ", " + string(*class.ReclaimPolicy)
	}
	if class.AllowedTopologies != nil {
		text += fmt.Sprintf(", allowed %v", class.AllowedTopologies)
	}
	return op{Text: text, Do: func(ctx context.Context, s side, space string) error {
		class := class.DeepCopy()
		class.Name = space + "-" + name
		class.Parameters[differential.ParameterSpace] = space
		_, err := s.Client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
		return err
	}}
}

// parameters draws those of a class, which make no sense only if they are wild.
func (d *provisioningDice) parameters(wild bool) map[string]string {
	all := map[string]string{}
	if d.IntN(3) == 0 {
		all["tier"] = differential.Pick(d, "gold", "")
	}
	if d.IntN(3) == 0 {
		maps.Copy(all, differential.Pick(d, map[string]string{"fstype": "ext4"}, map[string]string{"FsType": "xfs"},
			map[string]string{prefixed + "fstype": "xfs"}))
	}
	if wild && d.IntN(4) == 0 {
		all[differential.Pick(d, "fstype", prefixed+"fstype", prefixed+"pvc/name", prefixed+"unknown")] = "ext4"
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

func (d *provisioningDice) secret(all map[string]string, name, namespace string, wild bool) {
	if !wild {
		all[name] = differential.Pick(d, "s0", "s0", "${pvc.name}", "${pvc.annotations['"+annSecret+"']}")
		all[namespace] = differential.Pick(d, "${pvc.namespace}", "${pvc.namespace}", "${pvc.namespace}", "default")
		return
	}
	if d.IntN(10) > 0 {
		all[name] = d.secretName()
	}
	if d.IntN(10) > 0 {
		all[namespace] = d.secretNamespace()
	}
}

func (d *provisioningDice) secretName() string {
	return differential.Pick(d, "s0", "s1", "x-${pvc.namespace}", "${pv.name}", "${pvc.annotations['none']}",
		"${pvc.uid}", "",
		"No name", "a$$b", "${pvc.name", "$", "$x")
}

func (d *provisioningDice) secretNamespace() string {
	return differential.Pick(d, "${pvc.namespace}", "${pvc.namespace}", "${pvc.namespace}", "default", "${pvc.name}", "",
		"a.b", "${pv.name}")
}

func (d *provisioningDice) newDynamicClaim() op {
	c := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: d.modes(), VolumeMode: d.VolumeMode(),
		StorageClassName: ptr.To(differential.Pick(d, "fast", "fast", "fast", "late", "late", "odd")),
		Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: d.size()}},
	}}
	if d.IntN(3) == 0 {
		c.Annotations = map[string]string{annSecret: differential.Pick(d, "s0", "s1", "Not a name")}
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
		c.Spec.VolumeName = fmt.Sprint("v", d.IntN(d.Volumes+1))
	case 1:
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To("example.com"), Kind: "Populator", Name: "p"}
	case 2, 3, 4, 5:
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: d.claim()}
		c.Spec.Resources.Requests[corev1.ResourceStorage] = differential.Pick(d, resource.MustParse("8Gi"), d.size())
	}
	name := d.claimName(d.Claims)
	d.Claims++
	return op{
		Text: "make claim " + name + ": " + describeClaim(c),
		Do: func(ctx context.Context, s side, space string) error {
			c := c.DeepCopy()
			c.Name, c.Spec.StorageClassName = name, ptr.To(space+"-"+*c.Spec.StorageClassName)
			if c.Spec.VolumeAttributesClassName != nil {
				c.Spec.VolumeAttributesClassName = ptr.To(space + "-" + *c.Spec.VolumeAttributesClassName)
			}
			if c.Spec.VolumeName != "" {
				c.Spec.VolumeName = space + "-" + c.Spec.VolumeName
			}
			_, err := s.Client.CoreV1().PersistentVolumeClaims(space).Create(ctx, c, metav1.CreateOptions{})
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

// schedule does what the scheduler does when it has found a node, or abandons it.
func schedule(claim, to string) op {
	text, node := fmt.Sprintf("select node %s for claim %s", to, claim), strconv.Quote(to)
	if to == "" {
		text, node = "take the node from claim "+claim, "null"
	}
	return differential.PatchClaim(claim, text, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, volume.AnnSelectedNode, node))
}

func (d *provisioningDice) changeClaim() op {
	claim := d.made()
	if d.IntN(2) == 0 {
		return differential.PatchClaim(claim, "let claim "+claim+" ask for 9Gi", `{"spec":{"resources":{"requests":{"storage":"9Gi"}}}}`)
	}
	secret := differential.Pick(d, "s0", "s1")
	return differential.PatchClaim(claim, "annotate claim "+claim+" with secret "+secret,
		fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, annSecret, secret))
}

// changeMadeVolume does something to the volume that was created for a claim.
func (d *provisioningDice) changeMadeVolume() op {
	claim := d.made()
	patch := func(text, patch string) op {
		return op{Text: text + claim, Do: func(ctx context.Context, s side, space string) error {
			_, err := s.Client.CoreV1().PersistentVolumes().Patch(ctx, madeFor(s, space, claim), types.MergePatchType,
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
	return op{Text: "delete the volume of claim " + claim, Do: func(ctx context.Context, s side, space string) error {
		return s.Client.CoreV1().PersistentVolumes().Delete(ctx, madeFor(s, space, claim), metav1.DeleteOptions{})
	}}
}

// madeFor returns the name of the volume that is created for a claim.
func madeFor(s side, space, claim string) string {
	for uid, c := range s.Memory.Claims {
		if c == (differential.ClaimName{Space: space, Name: claim}) {
			return s.Memory.Volume(uid)
		}
	}
	return "none"
}

func (d *provisioningDice) fault(method string) op {
	f := fault{
		Times: differential.Pick(d, 1, 2, 0),
		Code: differential.Pick(d, codes.Internal, codes.Internal, codes.ResourceExhausted,
			codes.ResourceExhausted, codes.InvalidArgument, codes.OutOfRange, codes.NotFound,
			codes.AlreadyExists, codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled),
	}
	if f.Code == codes.Unavailable || f.Code == codes.DeadlineExceeded {
		f.After = d.IntN(2) == 0
	}
	text := fmt.Sprintf("let the driver answer %s with %s, %d times a volume (0 is always), done nevertheless: %v", method,
		f.Code, f.Times, f.After)
	return op{Text: text, Do: func(_ context.Context, s side, space string) error {
		s.Storage.Fail(space, method, f)
		return nil
	}}
}

func (d *provisioningDice) wrongSize() op {
	f := fault{
		Times:    differential.Pick(d, 1, 2, 0),
		Reported: differential.Pick(d, differential.Half, differential.Half, differential.Nothing),
	}
	text := fmt.Sprintf("let the driver answer CreateVolume with %s, %d times a volume (0 is always)", f.Reported, f.Times)
	return op{Text: text, Do: func(_ context.Context, s side, space string) error {
		s.Storage.Fail(space, "CreateVolume", f)
		return nil
	}}
}

// touchBound edits the claims and volumes of a sequence.
func touchBound(ctx context.Context, s side, space string, mark int) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, mark)
	for uid, c := range s.Memory.Claims {
		if c.Space != space {
			continue
		}
		if _, err := s.Client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, c.Name, types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil && !upstream.Refused(err) {
			return err
		}
		if _, err := s.Client.CoreV1().PersistentVolumes().Patch(ctx, s.Memory.Volume(uid), types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil && !upstream.Refused(err) {
			return err
		}
	}
	return nil
}

// attach creates or deletes the attachment of a claim's volume.
func (d *provisioningDice) attach() op {
	claim := d.made()
	if d.IntN(2) == 0 {
		return op{Text: "detach the volume of claim " + claim, Do: func(ctx context.Context, s side, space string) error {
			return s.Client.StorageV1().VolumeAttachments().Delete(ctx, space+"-"+claim, metav1.DeleteOptions{})
		}}
	}
	return op{Text: "attach the volume of claim " + claim, Do: func(ctx context.Context, s side, space string) error {
		a := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: space + "-" + claim},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: differential.DriverName, NodeName: "n1",
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(madeFor(s, space, claim))},
			},
		}
		_, err := s.Client.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
		return err
	}}
}

func (d *provisioningDice) changeClass() op {
	name := differential.Pick(d, "fast", "late", "odd", "odd")
	if d.IntN(2) == 0 {
		return d.newStorageClass(name)
	}
	return op{Text: "delete class " + name, Do: func(ctx context.Context, s side, space string) error {
		return s.Client.StorageV1().StorageClasses().Delete(ctx, space+"-"+name, metav1.DeleteOptions{})
	}}
}
