package provisioning

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/test/internal/differential"
)

// attributes draws the class of attributes that a claim requests; nil means none. The class "missing" never exists, and
// "strange" belongs to another driver.
func (d *provisioningDice) attributes() *string {
	if d.IntN(5) > 0 {
		return nil
	}
	return ptr.To(differential.Pick(d, "gold", "gold", "silver", "missing", "strange"))
}

// changeAttributes creates or deletes one of the driver's classes.
func (d *provisioningDice) changeAttributes() op {
	name := differential.Pick(d, "gold", "silver", "silver")
	if d.IntN(2) == 0 {
		return differential.NewAttributes(name)
	}
	return op{Text: "delete class of attributes " + name, Do: func(ctx context.Context, s side, space string) error {
		return s.Client.StorageV1().VolumeAttributesClasses().Delete(ctx, space+"-"+name, metav1.DeleteOptions{})
	}}
}

// wantAttributes gives a claim attributes, if it has none or different ones.
func (d *provisioningDice) wantAttributes() op {
	claim, name := d.made(), differential.Pick(d, "gold", "silver")
	return op{
		Text: "let claim " + claim + " want attributes " + name,
		Do: func(ctx context.Context, s side, space string) error {
			patch := fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, space+"-"+name)
			return differential.PatchClaim(claim, "", patch).Do(ctx, s, space)
		},
	}
}
