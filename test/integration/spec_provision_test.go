package integration

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// deletions returns the handles of all calls of DeleteVolume.
func (p *plane) deletions() (handles []string) {
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.DeleteVolumeRequest); ok {
			handles = append(handles, r.GetVolumeId())
		}
	}
	return handles
}

// TestRequestAndObject: the request to the driver follows from claim and class, and the volume object from
// both and from the answer.
func TestRequestAndObject(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast", func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{"tier": "1", "csi.storage.k8s.io/fstype": "xfs", "csiProvisionerFoo": "theirs"}
	})
	p.createClaim("files", "fast", func(c *corev1.PersistentVolumeClaim) {
		c.Labels = map[string]string{"app": "web"}
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}
	})
	p.createClaim("raw", "fast", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	})
	for _, name := range []string{"files", "raw"} {
		p.waitForBound(name)
	}
	p.waitForSettled()
	for _, r := range p.creations() {
		name := "files"
		if r.GetName() == "pvc-"+string(p.getClaim("raw").UID) {
			name = "raw"
		}
		p.follows(p.getClaim(name), r)
		p.stands(p.getClaim(name), p.getVolume(r.GetName()))
	}
	// Class and claim are in the object from its first write (S4-021).
	var saved []write
	for _, w := range p.writes.since(0) {
		if w.method == "POST" && w.path == "/api/v1/persistentvolumes" {
			saved = append(saved, w)
		}
	}
	for _, name := range []string{"files", "raw"} {
		whole := func(w write) bool { return w.about("fast") && w.about(string(p.getClaim(name).UID)) }
		if len(saved) != 2 || !slices.ContainsFunc(saved, whole) {
			t.Errorf("saved first: %q", saved)
		}
	}
}

// follows says which part of a request does not follow from the claim and its class.
func (p *plane) follows(c *corev1.PersistentVolumeClaim, r *csipb.CreateVolumeRequest) {
	p.t.Helper()
	_, files := r.GetVolumeCapabilities()[0].GetAccessType().(*csipb.VolumeCapability_Mount)
	for what, ok := range map[string]bool{
		"the name (S1-024, S4-051, S4-070)": r.GetName() == "pvc-"+string(c.UID) &&
			c.Spec.VolumeName == r.GetName(),
		"the size (S1-025)": r.GetCapacityRange().GetRequiredBytes() == 2<<30 &&
			r.GetCapacityRange().GetLimitBytes() == 0,
		"parameters without Kubernetes' own (S1-026)": maps.Equal(r.GetParameters(),
			map[string]string{"tier": "1", "csiProvisionerFoo": "theirs"}),
		"a capability for each access mode":            len(r.GetVolumeCapabilities()) == len(c.Spec.AccessModes),
		"block, asked for like files (S4-048)":         files == (*c.Spec.VolumeMode == corev1.PersistentVolumeFilesystem),
		"no credentials where none are named (S4-066)": len(r.GetSecrets()) == 0,
		"no topology of a driver without":              r.GetAccessibilityRequirements() == nil,
	} {
		if !ok {
			p.t.Errorf("%s of %s: called with %v", what, c.Name, r)
		}
	}
}

// stands says which part of a volume object does not follow from claim, class and answer.
func (p *plane) stands(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
	p.t.Helper()
	ref, source := v.Spec.ClaimRef, v.Spec.CSI
	for what, ok := range map[string]bool{
		"the class is in the field only (S4-042)": v.Spec.StorageClassName == "fast" &&
			v.Annotations[volume.AnnBetaStorageClass] == "",
		"labels are nobody's business (S4-008, S4-045)": len(v.Labels) == 0,
		"the claim with its UID (S4-040)": ref.UID == c.UID && ref.Name == c.Name &&
			ref.Namespace == c.Namespace,
		"who made it (S4-041)":  v.Annotations[volume.AnnProvisionedBy] == p.conn.Name,
		"access modes (S4-046)": slices.Equal(v.Spec.AccessModes, c.Spec.AccessModes),
		"size (S4-046)":         v.Spec.Capacity.Storage().Value() == 2<<30,
		"volume mode (S4-047)":  *v.Spec.VolumeMode == *c.Spec.VolumeMode,
		"what was made (S4-049, S1-075)": source.Driver == p.conn.Name && source.VolumeHandle == "id-"+v.Name &&
			source.VolumeAttributes["name"] == v.Name && !source.ReadOnly,
		"the default policy (S4-050, S4-004)": v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete,
		"no topology of a driver without":     v.Spec.NodeAffinity == nil,
	} {
		if !ok {
			p.t.Errorf("%s of %s: volume %+v", what, c.Name, v)
		}
	}
}

// TestObjectThatIsRefused: the driver's topology of the volume is not valid in an object. The volume is
// deleted, if necessary at the second attempt, and an event of the claim says why (S4-022, S4-038, S4-039).
func TestObjectThatIsRefused(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	var deleted atomic.Bool
	p.driver.OnCall("CreateVolume", func(_ int, req any) csitest.Action {
		if deleted.Load() {
			return csitest.Action{}
		}
		return csitest.Action{After: true, Answer: &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
			VolumeId: "id-" + req.(*csipb.CreateVolumeRequest).GetName(), CapacityBytes: 2 << 30,
			AccessibleTopology: []*csipb.Topology{{Segments: map[string]string{"no label!": "here"}}},
		}}}
	})
	p.driver.OnCall("DeleteVolume", func(n int, _ any) csitest.Action {
		if n == 1 {
			return csitest.Action{Err: status.Error(codes.Internal, "not now")}
		}
		deleted.Store(true)
		return csitest.Action{}
	})
	p.createClaim("c", "fast")
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed, "refused", "no label!")
	p.waitForBound("c")
	p.waitForSettled()
	p.agrees()
	if made := "id-" + p.getClaim("c").Spec.VolumeName; !slices.Equal(p.deletions(), []string{made, made}) {
		t.Errorf("deleted: %v", p.deletions())
	}
}

// TestObjectThatIsSavedLater: the API server refuses the volume object for a while, and the provisioner is
// restarted in the meantime. The volume is neither forgotten nor created twice (S4-037).
func TestObjectThatIsSavedLater(t *testing.T) {
	p := newPlane(t)
	roles := p.client.RbacV1().ClusterRoles()
	role, err := roles.Get(p.ctx, app.User("provisioner"), metav1.GetOptions{})
	p.must(err)
	p.mayCreateVolumes(role, false)
	p.createClass("fast")
	p.createClaim("c", "fast")
	tries := func() (n int) {
		for _, w := range p.writes.since(0) {
			if w.role == "provisioner" && w.method == "POST" && w.path == "/api/v1/persistentvolumes" {
				n++
			}
		}
		return n
	}
	p.eventually(func() string {
		if tries() < 3 {
			return fmt.Sprintf("saving was tried %d times", tries())
		}
		return ""
	})
	p.stop()
	p.start()
	before := tries()
	p.eventually(func() string {
		if tries() == before {
			return "saving was not tried again"
		}
		return ""
	})
	p.mayCreateVolumes(role, true)
	p.waitForBound("c")
	p.waitForSettled()
	p.sameArguments(2)
	p.agrees()
}

// mayCreateVolumes gives the provisioner's role the right to create volume objects, or removes it, and
// waits until that is in force.
func (p *plane) mayCreateVolumes(role *rbacv1.ClusterRole, may bool) {
	p.t.Helper()
	changed := role.DeepCopy()
	if !may {
		for i := range changed.Rules {
			changed.Rules[i].Verbs = slices.DeleteFunc(changed.Rules[i].Verbs, func(v string) bool {
				return v == "create" && slices.Contains(changed.Rules[i].Resources, "persistentvolumes")
			})
		}
	}
	changed.ResourceVersion = ""
	_, err := p.client.RbacV1().ClusterRoles().Update(p.ctx, changed, metav1.UpdateOptions{})
	p.must(err)
	p.eventually(func() string {
		if p.may("create", "", "persistentvolumes", app.User("provisioner")) != may {
			return "the role is not in force yet"
		}
		return ""
	})
}
