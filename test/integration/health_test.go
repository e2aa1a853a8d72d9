package integration

import (
	"fmt"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi/csitest"
)

// health waits until a claim reports the wanted health of its volume.
func (p *plane) health(claim, want string) {
	p.t.Helper()
	p.eventually(func() string {
		got := "nothing"
		if h := p.getClaim(claim).Status.HealthStatus; h != nil {
			got = ""
			for _, c := range h.HealthConditions {
				got += fmt.Sprintf("%s %s %.40q %d ", c.Status, c.Reason, c.Message, len(c.Message))
			}
		}
		if got != want {
			return fmt.Sprintf("it says %q, wanted %q", got, want)
		}
		return ""
	})
}

// TestHealthOfClaims: the API server accepts everything that a driver's controller reports about a volume; what another
// process of the controllers finds unchanged stays as it is; a failed list clears nothing, an answer for the volume
// alone does.
func TestHealthOfClaims(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) { c.Controller.ListVolumeHealth, c.Controller.GetVolumeHealth = true, true })
	handle := p.createBoundVolume("c")
	tell := func(a csitest.Action) {
		p.driver.OnCall("ControllerListVolumeHealth", func(int, any) csitest.Action { return a })
		p.stop()
		p.start()
	}
	var entries []*csipb.VolumeHealth_VolumeHealthEntry
	for _, reason := range []string{"", "no quorum", strings.Repeat("A", 300), "Fine", "Fine", "Bad:"} {
		entries = append(entries, &csipb.VolumeHealth_VolumeHealthEntry{
			Status: csipb.VolumeHealthErrorType_DEGRADED, Reason: reason, Message: strings.Repeat("ü", 1500),
		})
	}
	tell(csitest.Action{Answer: &csipb.ControllerListVolumeHealthResponse{
		Entries: []*csipb.VolumeHealth{{VolumeId: handle, HealthStatuses: entries}},
	}})
	text := strings.Repeat("ü", 40)
	want := fmt.Sprintf("Degraded Fine %q 1024 Degraded Unspecified %q 1024 ", text, strings.Repeat("A", 40))
	p.health("c", want)
	version := p.getClaim("c").ResourceVersion
	again := func(a csitest.Action) {
		before := p.calls("ControllerListVolumeHealth")
		tell(a)
		p.eventually(func() string {
			if p.calls("ControllerListVolumeHealth") == before {
				return "the driver was not asked"
			}
			return ""
		})
	}
	again(csitest.Action{Err: status.Error(codes.Internal, "no")})
	p.health("c", want)
	if now := p.getClaim("c").ResourceVersion; now != version {
		t.Errorf("the claim was written: version %s, was %s", now, version)
	}
	p.driver.OnCall("ControllerGetVolumeHealth", func(int, any) csitest.Action {
		return csitest.Action{Answer: &csipb.ControllerGetVolumeHealthResponse{
			VolumeHealth: &csipb.VolumeHealth{VolumeId: handle},
		}}
	})
	again(csitest.Action{Answer: &csipb.ControllerListVolumeHealthResponse{}})
	p.health("c", "")
}
