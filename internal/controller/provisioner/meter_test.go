package provisioner

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

// noted is a meter that writes down what it counts.
type noted []string

func (n *noted) Provisioned(class, source string, _ time.Duration, err error) {
	*n = append(*n, fmt.Sprintf("made of %q from %q: %v", class, source, err))
}

func (n *noted) Deleted(class string, _ time.Duration, err error) {
	*n = append(*n, fmt.Sprintf("deleted of %q: %v", class, err))
}

func (*noted) Intents(func() int) {}

// TestMeasured: attempts are counted with the class and the kind of the source; a conflict is none, and neither is an
// intent without a claim.
func TestMeasured(t *testing.T) {
	var m noted
	p, broken := &provisioner{Options: Options{Meter: &m}}, errors.New("broken")
	claim, v := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	claim.Spec.StorageClassName, v.Spec.StorageClassName = ptr.To("fast"), "slow"
	_ = p.measured(claim, func() error { return nil })
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot"}
	conflict := apierrors.NewConflict(corev1.Resource("persistentvolumes"), "v", nil)
	for _, err := range []error{
		p.measured(claim, func() error { return broken }), p.measured(nil, func() error { return broken }),
		p.measuredDelete(v, func() error { return broken }),
		(&provisioner{}).measured(claim, func() error { return broken }),
		(&provisioner{}).measuredDelete(v, func() error { return broken }),
	} {
		if !errors.Is(err, broken) {
			t.Errorf("the attempt's error became %v", err)
		}
	}
	_ = p.measuredDelete(v, func() error { return nil })
	if err := p.measuredDelete(v, func() error { return conflict }); !apierrors.IsConflict(err) {
		t.Errorf("a conflict became %v", err)
	}
	want := []string{
		`made of "fast" from "": <nil>`, `made of "fast" from "VolumeSnapshot": broken`, `deleted of "slow": broken`,
		`deleted of "slow": <nil>`,
	}
	if !slices.Equal(m, want) {
		t.Errorf("counted %q", m)
	}
}
