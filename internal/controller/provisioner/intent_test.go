package provisioner

import (
	"context"
	"fmt"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestADriverThatComesLateIsAskedAtOnce: what a call of an earlier life has made
// is deleted when the driver registers, however long after the first look, and
// until then it is told who is waited for.
func TestADriverThatComesLateIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(d *driver) { d.volumes["id-pvc-u-c"], d.late = 1<<30, true }, begun("u-c", "pvc-u-c"))
	w.tells("c", volume.ReasonDriverMissing, "driver "+driverName+" has not registered, and may have made a volume")
	w.register()
	w.settled()
	w.tells("c", volume.ReasonDeleting, "volume pvc-u-c, which nobody wants any more, is deleted")
	if left := w.driver.has(); left != "" {
		t.Errorf("left at the driver: %s", left)
	}
	w.noVolumes()
}

// TestADriverThatIsBackIsAskedAtOnce: a look that failed as a call is repeated
// when the driver is there again, not after its pause.
func TestADriverThatIsBackIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	failed := make(chan struct{}, 100)
	w := newWorld(t, func(d *driver) {
		d.volumes["id-pvc-u-c"] = 1 << 30
		d.answer = func(context.Context, *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
			failed <- struct{}{}
			return nil, status.Error(codes.Unavailable, "not yet")
		}
	}, begun("u-c", "pvc-u-c"))
	// Each pause is twice the one before: the next one is longer than all of
	// them.
	for range 6 {
		<-failed
	}
	w.driver.answers(nil)
	calls := w.driver.calls()
	waited := calls[len(calls)-1].Sub(calls[0])
	w.register()
	w.settled()
	w.tells("c", volume.ReasonProvisioningCleanupFailed, "not yet")
	if calls = w.driver.calls(); calls[6].Sub(calls[5]) > waited {
		t.Errorf("asked again after %v", calls[6].Sub(calls[5]))
	}
}

// TestWhatARefusalDoesNotProve: a driver makes a volume and says that it failed,
// and the claim is deleted meanwhile. Nothing is forgotten until the driver has
// said what became of it.
func TestWhatARefusalDoesNotProve(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		// says are the answers, one after the other; then it goes well.
		says []codes.Code
		// calls is how many calls of CreateVolume there are.
		calls int
	}{
		{[]codes.Code{codes.Internal}, 2},
		{[]codes.Code{codes.Unknown, codes.Internal}, 3},
		{[]codes.Code{codes.DataLoss, codes.FailedPrecondition, codes.Aborted}, 4},
		{[]codes.Code{
			codes.Internal, codes.PermissionDenied, codes.Unauthenticated, codes.AlreadyExists, codes.Unimplemented,
		}, 6},
		{[]codes.Code{codes.Code(42)}, 2},
	} {
		t.Run(fmt.Sprint(c.says), func(t *testing.T) {
			t.Parallel()
			w := playCodes(t, c.says, true)
			w.settled()
			if calls := len(w.driver.calls()); calls != c.calls || w.driver.has() != "" {
				t.Errorf("%d calls, left at the driver: %q", calls, w.driver.has())
			}
			w.noVolumes()
		})
	}
}

// TestWhatARefusalProves: then nobody is asked again for what nobody wants.
func TestWhatARefusalProves(t *testing.T) {
	t.Parallel()
	for _, says := range [][]codes.Code{
		{codes.InvalidArgument},
		{codes.PermissionDenied},
		{codes.AlreadyExists},
		{codes.Internal, codes.NotFound},
		{codes.Unavailable, codes.ResourceExhausted},
	} {
		t.Run(fmt.Sprint(says), func(t *testing.T) {
			t.Parallel()
			w := playCodes(t, says, false)
			w.settled()
			if calls, deleted := len(w.driver.calls()), w.driver.deletions(); calls != len(says) || len(deleted) > 0 {
				t.Errorf("%d calls, deleted %v", calls, deleted)
			}
			w.noVolumes()
		})
	}
}

// playCodes has a claim's driver give these answers one after the other, whether
// it makes the volume or not, and the claim deleted during the first call.
func playCodes(t *testing.T, says []codes.Code, makes bool) *world {
	t.Helper()
	client := make(chan *world, 1)
	left := slices.Clone(says)
	w := newWorld(t, func(d *driver) {
		d.answer = func(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
			if len(left) == len(says) {
				w := <-client
				if err := w.client.CoreV1().PersistentVolumeClaims("ns").Delete(ctx, "c", metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			}
			if len(left) == 0 {
				return nil, nil
			}
			code := left[0]
			left = left[1:]
			if makes {
				d.make(r)
			}
			return nil, status.Error(code, "done, or not")
		}
	}, claim("c"))
	client <- w
	kubetest.Eventually(t, func() string {
		if len(w.driver.calls()) == 0 {
			return "CreateVolume"
		}
		return ""
	})
	return w
}
