package capacity

import (
	"fmt"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/resource"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest/story"
	"volplane.dev/volplane/internal/volume"
)

// TestStories plays testdata/*.txt. "driver has SIZE" has the driver answer GetCapacity, "driver fails" has it refuse,
// "driver leaves" and "driver comes" take it from the set of drivers and put it back, "driver serves NODE" has the
// process call it for the volumes of that node only, or of all if none is named.
func TestStories(t *testing.T) {
	story.Run(t, func(s *story.Scene) story.Cast {
		d := newDouble(s)
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller { return New(env, Options{Drivers: d.set}) },
			Commands:   map[string]func([]string) error{"driver": d.command},
		}
	})
}

// double is a driver in memory that has 1Gi.
type double struct {
	set    *csi.Set
	dialed *csi.Driver
	free   int64
	fails  bool
}

func newDouble(s *story.Scene) *double {
	config := csitest.Full()
	config.Name = driverName
	served, d := csitest.InMemory(s, config), &double{set: csi.NewSet(), free: gib}
	served.OnEach(func(method string, request proto.Message) csitest.Action {
		r, ok := request.(*csipb.GetCapacityRequest)
		if !ok {
			return csitest.Action{}
		}
		s.Note(fmt.Sprintf("%s zone=%s tier=%s", method, r.GetAccessibleTopology().GetSegments()["zone"],
			r.GetParameters()["tier"]))
		if d.fails {
			return csitest.Action{Err: status.Error(codes.Internal, "the pool is offline")}
		}
		return csitest.Action{Answer: &csipb.GetCapacityResponse{AvailableCapacity: d.free}}
	})
	d.dialed = served.Dial(csitest.Told(s))
	d.set.Put(d.dialed)
	return d
}

func (d *double) command(args []string) error {
	switch word := strings.Join(args[:1], ""); word {
	case "has":
		size, err := resource.ParseQuantity(args[1])
		d.free, d.fails = size.Value(), false
		return err
	case "fails":
		d.fails = true
	case "leaves":
		d.set.Remove(d.dialed)
	case "comes":
		d.set.Put(d.dialed)
	case "serves":
		d.set.Remove(d.dialed)
		d.dialed = d.dialed.In(volume.Scope{Node: strings.Join(args[1:], ""), Rest: true})
		d.set.Put(d.dialed)
	default:
		return fmt.Errorf("a driver does not do %q", word)
	}
	return nil
}
