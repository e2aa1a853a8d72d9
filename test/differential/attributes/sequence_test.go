package attributes

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// modifyDice draws the sequences about changes of attributes.
type modifyDice struct {
	*dice
	sizes int
}

// drawModifying draws actions of users, administrators and drivers on the attributes of volumes.
func drawModifying(seed uint64, length int) sequence {
	d := &modifyDice{dice: differential.NewDice(seed)}
	s := sequence{Seed: seed, Ops: []op{
		newGrowing(), differential.NewAttributes("gold"), differential.NewAttributes("silver"),
		differential.NewAttributes("strange"), d.newClaim(),
	}}
	if d.IntN(6) == 0 {
		s.Ops[0] = newGrowing().With(differential.Disturb())
	}
	for len(s.Ops) < length+5 {
		s.Ops = append(s.Ops, d.op())
	}
	return s
}

func (d *modifyDice) op() op {
	return d.OneOf([]differential.Weighted{
		{Often: 16, Draw: d.wish},
		{Often: 2, Draw: d.newClaim},
		{Often: 5, Draw: d.modifyFault},
		{Often: 4, Draw: func() op { return differential.Heal(d.Int()) }},
		{Often: 1, Draw: func() op { return differential.NewAttributes(differential.Pick(d, "gold", "silver")) }},
		{Often: 1, Draw: func() op { return dropAttributes(differential.Pick(d, "gold", "silver", "iron")) }},
		{Often: 2, Draw: func() op { return differential.NewAttributes("iron") }},
		{Often: 1, Draw: func() op { return otherParameters(differential.Pick(d, "gold", "silver"), d.IntN(3)) }},
		{Often: 2, Draw: d.grow},
		{Often: 1, Draw: func() op { return differential.DeleteClaim(d.anyClaim()) }},
		{Often: 1, Draw: func() op { return differential.ReleaseClaim(d.anyClaim()) }},
	})
}

func (d *modifyDice) anyClaim() string { return fmt.Sprint("c", d.IntN(d.Claims)) }

// newClaim creates a claim that is bound to a volume, with or without a VolumeAttributesClass.
func (d *modifyDice) newClaim() op {
	name := fmt.Sprint("c", d.Claims)
	d.Claims++
	return newModifiable(name, differential.Pick(d, "", "", "gold", "silver"))
}

// newModifiable creates a claim that is bound to a volume with the attributes of a class; "" means no class.
func newModifiable(name, class string) op {
	text := fmt.Sprintf("make claim %s with attributes %q, bound to a volume", name, class)
	return op{Text: text, Do: func(ctx context.Context, s side, space string) error {
		c, v := upstream.ClaimOf(name, space), differential.CSIVolume(space+"-"+strings.Replace(name, "c", "v", 1),
			differential.DriverName,
			corev1.ReadWriteOnce)
		if class != "" {
			c.Spec.VolumeAttributesClassName = ptr.To(space + "-" + class)
			v.Spec.VolumeAttributesClassName = c.Spec.VolumeAttributesClassName
		}
		v.Spec.StorageClassName = space
		return makeModifiable(ctx, s, space, c, v)
	}}
}

// makeModifiable creates a claim that is bound to a volume, and has its attributes. It also has a capacity: without one
// Kubernetes' resizer panics.
func makeModifiable(
	ctx context.Context, s side, space string, c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume,
) error {
	claims := s.Client.CoreV1().PersistentVolumeClaims(space)
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
	return s.BindClaim(ctx, space, c.Name, v)
}

// newGrowing creates the class whose volumes may grow.
func newGrowing() op {
	return op{Text: "let volumes grow", Do: func(ctx context.Context, s side, space string) error {
		_, err := s.Client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: space}, Provisioner: differential.DriverName, AllowVolumeExpansion: ptr.To(true),
		}, metav1.CreateOptions{})
		return err
	}}
}

// wish makes a claim request other attributes, or none.
func (d *modifyDice) wish() op {
	class := differential.Pick(d, "gold", "gold", "gold", "silver", "silver", "silver", "", "", "iron")
	if d.IntN(40) == 0 {
		class = "strange"
	}
	return wish(d.anyClaim(), class)
}

// wish makes a claim request the attributes of a class; "" means no class.
func wish(claim, class string) op {
	return op{Text: fmt.Sprintf("let claim %s want attributes %q", claim, class), Do: func(
		ctx context.Context, s side, space string,
	) error {
		patch := `{"spec":{"volumeAttributesClassName":null}}`
		if class != "" {
			patch = fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, space+"-"+class)
		}
		return differential.PatchClaim(claim, "", patch).Do(ctx, s, space)
	}}
}

// dropAttributes deletes a class of attributes, even if it is in use: the API server adds its protection, and no
// controller removes that here.
func dropAttributes(name string) op {
	return op{Text: "delete class of attributes " + name, Do: func(ctx context.Context, s side, space string) error {
		classes := s.Client.StorageV1().VolumeAttributesClasses()
		if _, err := classes.Patch(ctx, space+"-"+name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{}); err != nil {
			return err
		}
		return classes.Delete(ctx, space+"-"+name, metav1.DeleteOptions{})
	}}
}

// otherParameters recreates a class of attributes with other parameters, because they cannot be changed.
func otherParameters(class string, value int) op {
	return op{Text: fmt.Sprintf("recreate class of attributes %s, with value %d", class, value), Do: func(
		ctx context.Context, s side, space string,
	) error {
		if err := dropAttributes(class).Do(ctx, s, space); err != nil {
			return err
		}
		_, err := s.Client.StorageV1().VolumeAttributesClasses().Create(ctx, &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: space + "-" + class}, DriverName: differential.DriverName,
			Parameters: map[string]string{"iops": class, "value": fmt.Sprint(value)},
		}, metav1.CreateOptions{})
		return err
	}}
}

// grow makes a claim request a larger volume.
func (d *modifyDice) grow() op {
	d.sizes++
	return ask(d.anyClaim(), fmt.Sprint(1+d.sizes, "Gi"))
}

// ask makes a claim request a volume of another size.
func ask(claim, size string) op {
	return differential.PatchClaim(claim, "let claim "+claim+" ask for "+size,
		fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size))
}

// modifyFault makes calls fail. A permanently refused call is repeated after five minutes.
func (d *modifyDice) modifyFault() op {
	f := fault{
		Times: differential.Pick(d, 1, 2, 0, 0),
		Code: differential.Pick(d, codes.Internal, codes.Internal, codes.InvalidArgument,
			codes.InvalidArgument, codes.OutOfRange, codes.NotFound, codes.ResourceExhausted, codes.Unavailable,
			codes.DeadlineExceeded, codes.Aborted),
	}
	if f.Code == codes.InvalidArgument {
		f.Times = 0
	}
	if f.Code == codes.Unavailable || f.Code == codes.DeadlineExceeded {
		f.After = d.IntN(2) == 0
	}
	return differential.Failing(differential.MethodModify, f)
}
