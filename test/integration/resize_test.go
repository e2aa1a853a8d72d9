package integration

import (
	"fmt"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// growing returns a plane with a class that allows expansion, and a bound claim "c" of 1Gi.
func growing(t *testing.T, change ...func(*csitest.Config)) *plane {
	p := newPlane(t, change...)
	_, err := p.client.StorageV1().StorageClasses().Create(p.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "grows"}, Provisioner: p.conn.Name, AllowVolumeExpansion: ptr.To(true),
	}, metav1.CreateOptions{})
	p.must(err)
	p.growable("c")
	return p
}

func (p *plane) growable(name string) {
	p.t.Helper()
	p.createBoundVolume(name, func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "grows" })
}

// asks changes a claim's request. The class may still be new to the admission plugin that checks this, so a
// refusal is repeated.
func (p *plane) asks(claim, size string) {
	p.t.Helper()
	body := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	p.eventually(func() string {
		if _, err := p.client.CoreV1().PersistentVolumeClaims("default").Patch(p.ctx, claim, types.MergePatchType, body,
			metav1.PatchOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
}

// has waits until a claim has a size and a state of its expansion, and its volume has the volume size.
func (p *plane) has(claim, size, volumeSize string, state corev1.ClaimResourceStatus) {
	p.t.Helper()
	p.eventually(func() string {
		c := p.getClaim(claim)
		v, err := p.client.CoreV1().PersistentVolumes().Get(p.ctx, c.Spec.VolumeName, metav1.GetOptions{})
		p.must(err)
		got := c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
		if c.Status.Capacity.Storage().Cmp(resource.MustParse(size)) != 0 ||
			v.Spec.Capacity.Storage().Cmp(resource.MustParse(volumeSize)) != 0 || got != state {
			return fmt.Sprintf("claim %s has %s, its volume %s, state %q, conditions %v", claim, c.Status.Capacity.Storage(),
				v.Spec.Capacity.Storage(), got, c.Status.Conditions)
		}
		return ""
	})
}

// resizeConditions returns the conditions of a claim without Unused, which every bound claim has.
func (p *plane) resizeConditions(claim string) []corev1.PersistentVolumeClaimCondition {
	return slices.DeleteFunc(p.getClaim(claim).Status.Conditions, func(k corev1.PersistentVolumeClaimCondition) bool {
		return k.Type == corev1.PersistentVolumeClaimUnused
	})
}

// asked returns the sizes, in MiB, of all requests to expand.
func (p *plane) asked() (sizes []int64) {
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.ControllerExpandVolumeRequest); ok {
			sizes = append(sizes, r.GetCapacityRange().GetRequiredBytes()>>20)
		}
	}
	return sizes
}

// TestResize: the controller expands the volume, and the test does the part of the node.
func TestResize(t *testing.T) {
	p := growing(t)
	p.asks("c", "2Gi")
	p.has("c", "1Gi", "2Gi", corev1.PersistentVolumeClaimNodeResizePending)
	if k := p.resizeConditions("c"); len(k) != 1 ||
		k[0].Type != corev1.PersistentVolumeClaimFileSystemResizePending {
		t.Errorf("conditions are %v", k)
	}
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonNodeResizePending)
	// A larger request waits for the node.
	p.asks("c", "3Gi")
	_, err := p.client.CoreV1().PersistentVolumeClaims("default").Patch(p.ctx, "c", types.MergePatchType,
		[]byte(`{"status":{"capacity":{"storage":"2Gi"},"allocatedResourceStatuses":{"storage":null},"conditions":[]}}`),
		metav1.PatchOptions{}, "status")
	p.must(err)
	p.has("c", "2Gi", "3Gi", corev1.PersistentVolumeClaimNodeResizePending)
	if got := fmt.Sprint(p.asked()); got != "[2048 3072]" {
		t.Errorf("the driver was asked for %s", got)
	}
}

// TestResizeThatCannotBe: events say why, the driver is not called again and again, and a smaller request
// cancels the expansion.
func TestResizeThatCannotBe(t *testing.T) {
	p := growing(t, func(c *csitest.Config) { c.Node.Expand = false })
	p.growable("d")
	p.driver.OnCall("ControllerExpandVolume", func(_ int, req any) csitest.Action {
		if req.(*csipb.ControllerExpandVolumeRequest).GetCapacityRange().GetRequiredBytes() > 8<<30 {
			return csitest.Action{Err: status.Error(codes.OutOfRange, "too large")}
		}
		return csitest.Action{}
	})
	p.asks("c", "100Gi")
	p.has("c", "1Gi", "1Gi", corev1.PersistentVolumeClaimControllerResizeInfeasible)
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonFailedResize, "too large")
	for _, size := range []string{"2Gi", "3Gi", "4Gi"} {
		p.asks("d", size)
		p.has("d", size, size, "")
	}
	p.asks("c", "5Gi")
	p.has("c", "5Gi", "5Gi", "")
	if got := fmt.Sprint(p.asked()); got != "[102400 2048 3072 4096 5120]" {
		t.Errorf("the driver was asked for %s", got)
	}
}
