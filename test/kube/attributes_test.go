package kube

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// attributes draws the class of attributes that a claim wants; nil is none. Of
// those that it may want "missing" never exists, and "strange" is another
// driver's.
func (d *dice) attributes() *string {
	if d.IntN(5) > 0 {
		return nil
	}
	return ptr.To(pick(d, "gold", "gold", "silver", "missing", "strange"))
}

// newAttributes makes a class of attributes.
func newAttributes(name string) op {
	class := &storagev1.VolumeAttributesClass{DriverName: driverName, Parameters: map[string]string{"iops": name}}
	if name == "strange" {
		class.DriverName = "other.example.com"
	}
	return op{
		text: fmt.Sprintf("make class of attributes %s of %s", name, class.DriverName),
		do: func(ctx context.Context, s side, space string) error {
			class := class.DeepCopy()
			class.Name = space + "-" + name
			_, err := s.client.StorageV1().VolumeAttributesClasses().Create(ctx, class, metav1.CreateOptions{})
			return err
		},
	}
}

// changeAttributes makes or deletes one of the driver's.
func (d *dice) changeAttributes() op {
	name := pick(d, "gold", "silver", "silver")
	if d.IntN(2) == 0 {
		return newAttributes(name)
	}
	return op{text: "delete class of attributes " + name, do: func(ctx context.Context, s side, space string) error {
		return s.client.StorageV1().VolumeAttributesClasses().Delete(ctx, space+"-"+name, metav1.DeleteOptions{})
	}}
}

// wantAttributes lets a claim that has none, or others, want some.
func (d *dice) wantAttributes() op {
	claim, name := d.made(), pick(d, "gold", "silver")
	return op{
		text: "let claim " + claim + " want attributes " + name,
		do: func(ctx context.Context, s side, space string) error {
			patch := fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, space+"-"+name)
			return patchClaim(claim, "", patch).do(ctx, s, space)
		},
	}
}
