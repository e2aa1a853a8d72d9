package differential

import (
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
)

// NewAttributes makes a class of attributes.
func NewAttributes(name string) Op {
	class := &storagev1.VolumeAttributesClass{DriverName: DriverName, Parameters: map[string]string{"iops": name}}
	if name == "strange" {
		class.DriverName = "other.example.com"
	}
	return Op{
		Text: fmt.Sprintf("make class of attributes %s of %s", name, class.DriverName),
		Do: func(ctx context.Context, s Side, space string) error {
			class := class.DeepCopy()
			class.Name = space + "-" + name
			_, err := s.Client.StorageV1().VolumeAttributesClasses().Create(ctx, class, metav1.CreateOptions{})
			return err
		},
	}
}

// MethodModify is the call that changes the attributes of a volume.
const MethodModify = "ControllerModifyVolume"

// Modifies makes the driver answer changes of attributes as the sequences want.
func (s *Storage) Modifies() {
	s.Driver.OnCall(MethodModify, func(_ int, req any) csitest.Action {
		r := req.(*csipb.ControllerModifyVolumeRequest)
		space := newMemory().space.FindString(r.GetVolumeId())
		action, _ := s.action(space, MethodModify, r.GetVolumeId())
		if action.Hang {
			s.mu.Lock()
			defer s.mu.Unlock()
			Note(s.answers, space, Unanswered+MethodModify+" of "+r.GetVolumeId())
		}
		return action
	})
}

// ModifyCalls returns how often the driver was called to change each volume.
func (s *Storage) ModifyCalls() map[string]int {
	out := map[string]int{}
	for _, c := range s.Driver.Calls() {
		if r, ok := c.Request.(*csipb.ControllerModifyVolumeRequest); ok {
			out[r.GetVolumeId()]++
		}
	}
	return out
}
