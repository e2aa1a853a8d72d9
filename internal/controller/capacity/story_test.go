package capacity

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/csi/csitest"
)

// TestStories plays testdata/*.txt with a driver that has 1Gi.
func TestStories(t *testing.T) {
	config := csitest.Full()
	config.Name = driverName
	story.Run(t, "testdata", func(s *story.Scene) story.Cast {
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller { return New(env, Options{Drivers: s.Drivers}) },
			Driver:     &config,
			Answers:    map[string]proto.Message{"GetCapacity": &csipb.GetCapacityResponse{AvailableCapacity: gib}},
		}
	})
}
