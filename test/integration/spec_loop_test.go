package integration

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// TestGivenUpNodeIsNotAskedAtOnce: a late-binding claim whose node is given up is tried again with a
// growing back-off, whether another node could be chosen or not (S4-035). Other claims are created and
// deleted in the meantime, which leaves time for wrong calls.
func TestGivenUpNodeIsNotAskedAtOnce(t *testing.T) {
	for _, node := range []string{"", "n1"} {
		t.Run(fmt.Sprintf("node %q", node), func(t *testing.T) {
			p := newZones(t)
			p.createClass("late", late)
			p.createClass("elsewhere", late, allow("b", "c"))
			p.createClass("fast")
			p.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
				return csitest.Action{Err: status.Error(codes.ResourceExhausted, "full")}
			})
			p.createClaim("full", "late")
			p.createPod("full", node, "full")
			p.waitForEvent("PersistentVolumeClaim", "full", volume.ReasonProvisioningFailed, "full")
			if node != "" {
				p.createClaim("away", "elsewhere")
				p.createPod("away", node, "away")
				p.waitForEvent("PersistentVolumeClaim", "away", volume.ReasonProvisioningFailed, "allowed topology")
			}
			for i := range 10 {
				name := fmt.Sprint("other", i)
				p.createVolume(name, "2Gi", "byhand")
				p.createClaim(name, "byhand")
				p.waitForBound(name)
				p.deleteClaim(name)
				p.waitForNoClaim(name)
			}
			if n := p.calls("CreateVolume"); n > 10 {
				t.Errorf("a driver that is full was asked %d times", n)
			}
			written := 0
			for _, w := range p.writes.since(0) {
				if kind, name := objectOf(w.path); kind == "persistentvolumeclaims" && (name == "full" || name == "away") {
					written++
				}
			}
			if written > 60 {
				t.Errorf("two claims for which nothing can be done were written %d times", written)
			}
		})
	}
}
