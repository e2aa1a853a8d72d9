package resizer

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/csi/csitest"
)

// TestSteps: what the resizer does step by step, on its own, and when it is killed.
func TestSteps(t *testing.T) {
	config := csitest.Full()
	config.Name = driverName
	story.Run(t, "testdata/steps", func(s *story.Scene) story.Cast {
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller { return New(env, s.Drivers) },
			Driver:     &config,
			Usual:      []proto.Message{request()},
			Answers: map[string]proto.Message{
				"ControllerExpandVolume": &csipb.ControllerExpandVolumeResponse{
					CapacityBytes: 2 << 30, NodeExpansionRequired: true,
				},
			},
			Given: []string{"claim", "pv", "secret"},
		}
	})
}
