package modifier

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/csi/csitest"
)

// TestSteps: what the modifier does step by step, on its own, and when it is killed.
func TestSteps(t *testing.T) {
	config := csitest.Full()
	config.Name = "d.example"
	// This is the request when the volume gets class gold.
	usual := &csipb.ControllerModifyVolumeRequest{
		VolumeId: "h", Secrets: map[string]string{"key": "value of s"}, MutableParameters: map[string]string{"level": "gold"},
	}
	story.Run(t, "testdata/steps", func(s *story.Scene) story.Cast {
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller {
				return New(env, s.Drivers, s.Option("metadata") != "")
			},
			Driver:  &config,
			Usual:   []proto.Message{usual},
			Answers: map[string]proto.Message{"ControllerModifyVolume": &csipb.ControllerModifyVolumeResponse{}},
			Given:   []string{"claim", "pv", "gold", "silver", "secret"},
		}
	})
}
