package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi/csitest"
)

// modifyDice draws the sequences about changes of attributes.
type modifyDice struct {
	*dice
	sizes int
}

// drawModifying draws what users, administrators and drivers do around the attributes of volumes.
func drawModifying(seed uint64, length int) sequence {
	d := &modifyDice{dice: &dice{Rand: newRand(seed)}}
	s := sequence{seed: seed, ops: []op{
		newGrowing(), newAttributes("gold"), newAttributes("silver"), newAttributes("strange"), d.newClaim(),
	}}
	if d.IntN(6) == 0 {
		s.ops[0] = newGrowing().with(disturb())
	}
	for len(s.ops) < length+5 {
		s.ops = append(s.ops, d.op())
	}
	return s
}

// with does another op as well.
func (o op) with(other op) op {
	first := o.do
	return op{text: o.text + "; " + other.text, do: func(ctx context.Context, s side, space string) error {
		if err := first(ctx, s, space); err != nil {
			return err
		}
		return other.do(ctx, s, space)
	}}
}

func (d *modifyDice) op() op {
	return d.oneOf([]weighted{
		{16, d.wish},
		{2, d.newClaim},
		{5, d.modifyFault},
		{4, func() op { return heal(d.Int()) }},
		{1, func() op { return newAttributes(pick(d.dice, "gold", "silver")) }},
		{1, func() op { return dropAttributes(pick(d.dice, "gold", "silver", "iron")) }},
		{2, func() op { return newAttributes("iron") }},
		{1, func() op { return otherParameters(pick(d.dice, "gold", "silver"), d.IntN(3)) }},
		{2, d.grow},
		{1, func() op { return deleteClaim(d.anyClaim()) }},
		{1, func() op { return releaseClaim(d.anyClaim()) }},
	})
}

func (d *modifyDice) anyClaim() string { return fmt.Sprint("c", d.IntN(d.claims)) }

// newClaim makes a claim that is bound to a volume with the attributes of a class, or with none.
func (d *modifyDice) newClaim() op {
	name := fmt.Sprint("c", d.claims)
	d.claims++
	return newModifiable(name, pick(d.dice, "", "", "gold", "silver"))
}

// newModifiable makes a claim that is bound to a volume with the attributes of a class; "" is none.
func newModifiable(name, class string) op {
	text := fmt.Sprintf("make claim %s with attributes %q, bound to a volume", name, class)
	return op{text: text, do: func(ctx context.Context, s side, space string) error {
		c, v := claimOf(name, space), csiVolume(space+"-"+strings.Replace(name, "c", "v", 1), driverName,
			corev1.ReadWriteOnce)
		if class != "" {
			c.Spec.VolumeAttributesClassName = ptr.To(space + "-" + class)
			v.Spec.VolumeAttributesClassName = c.Spec.VolumeAttributesClassName
		}
		v.Spec.StorageClassName = space
		return s.makeModifiable(ctx, space, c, v)
	}}
}

// makeModifiable makes a claim that is bound to a volume, and has its attributes. It has a capacity as well: without
// one Kubernetes' resizer dies.
func (s side) makeModifiable(
	ctx context.Context, space string, c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume,
) error {
	claims := s.client.CoreV1().PersistentVolumeClaims(space)
	if _, err := claims.Create(ctx, c, metav1.CreateOptions{}); err != nil {
		return err
	}
	c.Status.Capacity, c.Status.CurrentVolumeAttributesClassName = v.Spec.Capacity, v.Spec.VolumeAttributesClassName
	status, err := json.Marshal(map[string]any{"status": c.Status})
	if err != nil {
		return err
	}
	if _, err := claims.Patch(ctx, c.Name, types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	return s.bindClaim(ctx, space, c.Name, v)
}

// newGrowing makes the class whose volumes may become larger.
func newGrowing() op {
	return op{text: "let volumes grow", do: func(ctx context.Context, s side, space string) error {
		_, err := s.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: space}, Provisioner: driverName, AllowVolumeExpansion: ptr.To(true),
		}, metav1.CreateOptions{})
		return err
	}}
}

// wish lets a claim want other attributes, or none.
func (d *modifyDice) wish() op {
	class := pick(d.dice, "gold", "gold", "gold", "silver", "silver", "silver", "", "", "iron")
	if d.IntN(40) == 0 {
		class = "strange"
	}
	return wish(d.anyClaim(), class)
}

// wish lets a claim want the attributes of a class; "" is none.
func wish(claim, class string) op {
	return op{text: fmt.Sprintf("let claim %s want attributes %q", claim, class), do: func(
		ctx context.Context, s side, space string,
	) error {
		patch := `{"spec":{"volumeAttributesClassName":null}}`
		if class != "" {
			patch = fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, space+"-"+class)
		}
		return patchClaim(claim, "", patch).do(ctx, s, space)
	}}
}

// dropAttributes deletes a class of attributes, whoever names it: the API server has it protected, and nobody looks
// after that here.
func dropAttributes(name string) op {
	return op{text: "delete class of attributes " + name, do: func(ctx context.Context, s side, space string) error {
		classes := s.client.StorageV1().VolumeAttributesClasses()
		if _, err := classes.Patch(ctx, space+"-"+name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{}); err != nil {
			return err
		}
		return classes.Delete(ctx, space+"-"+name, metav1.DeleteOptions{})
	}}
}

// otherParameters makes a class of attributes anew, with other parameters: they cannot be changed.
func otherParameters(class string, value int) op {
	return op{text: fmt.Sprintf("make class of attributes %s anew, with value %d", class, value), do: func(
		ctx context.Context, s side, space string,
	) error {
		if err := dropAttributes(class).do(ctx, s, space); err != nil {
			return err
		}
		_, err := s.client.StorageV1().VolumeAttributesClasses().Create(ctx, &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: space + "-" + class}, DriverName: driverName,
			Parameters: map[string]string{"iops": class, "value": fmt.Sprint(value)},
		}, metav1.CreateOptions{})
		return err
	}}
}

// grow lets a claim want a larger volume.
func (d *modifyDice) grow() op {
	d.sizes++
	return ask(d.anyClaim(), fmt.Sprint(1+d.sizes, "Gi"))
}

// ask lets a claim want a volume of another size.
func ask(claim, size string) op {
	return patchClaim(claim, "let claim "+claim+" ask for "+size,
		fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size))
}

// modifyFault has calls fail. What is refused for good is asked for again in five minutes.
func (d *modifyDice) modifyFault() op {
	f := fault{times: pick(d.dice, 1, 2, 0, 0), code: pick(d.dice, codes.Internal, codes.Internal, codes.InvalidArgument,
		codes.InvalidArgument, codes.OutOfRange, codes.NotFound, codes.ResourceExhausted, codes.Unavailable,
		codes.DeadlineExceeded, codes.Aborted)}
	if f.code == codes.InvalidArgument {
		f.times = 0
	}
	if f.code == codes.Unavailable || f.code == codes.DeadlineExceeded {
		f.after = d.IntN(2) == 0
	}
	return failing(methodModify, f)
}

const methodModify = "ControllerModifyVolume"

// modifies has the driver answer changes of attributes as the sequences want.
func (s *storage) modifies() {
	s.driver.OnCall(methodModify, func(_ int, req any) csitest.Action {
		r := req.(*csipb.ControllerModifyVolumeRequest)
		space := newMemory().space.FindString(r.GetVolumeId())
		action, _ := s.action(space, methodModify, r.GetVolumeId())
		if action.Hang {
			s.mu.Lock()
			defer s.mu.Unlock()
			note(s.answers, space, unanswered+methodModify+" of "+r.GetVolumeId())
		}
		return action
	})
}

// modifyCalls returns how often the driver was asked to change each volume.
func (s *storage) modifyCalls() map[string]int {
	out := map[string]int{}
	for _, c := range s.driver.Calls() {
		if r, ok := c.Request.(*csipb.ControllerModifyVolumeRequest); ok {
			out[r.GetVolumeId()]++
		}
	}
	return out
}
