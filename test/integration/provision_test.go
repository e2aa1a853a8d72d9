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
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// waitForSettled waits until there are no intents.
func (p *plane) waitForSettled() {
	p.t.Helper()
	p.eventually(func() string {
		all, err := p.client.CoreV1().ConfigMaps("").List(p.ctx, metav1.ListOptions{LabelSelector: volume.LabelIntents})
		p.must(err)
		for _, o := range all.Items {
			return fmt.Sprintf("intents are left: %v", o.Data)
		}
		return ""
	})
}

// agrees fails the test when the volumes at the driver differ from the volume objects.
func (p *plane) agrees() {
	p.t.Helper()
	all, err := p.client.CoreV1().PersistentVolumes().List(p.ctx, metav1.ListOptions{})
	p.must(err)
	var objects, volumes []string
	for i := range all.Items {
		objects = append(objects, all.Items[i].Spec.CSI.VolumeHandle)
	}
	for _, v := range p.driver.Volumes() {
		volumes = append(volumes, v.ID)
	}
	slices.Sort(objects)
	slices.Sort(volumes)
	if !slices.Equal(objects, volumes) {
		p.t.Errorf("objects stand for %v, the driver has %v", objects, volumes)
	}
}

// nothingLeft waits until the only volume objects are these, and until the driver has no volumes.
func (p *plane) nothingLeft(but ...string) {
	p.t.Helper()
	p.eventually(func() string {
		all, err := p.client.CoreV1().PersistentVolumes().List(p.ctx, metav1.ListOptions{})
		p.must(err)
		for i := range all.Items {
			if v := &all.Items[i]; !slices.Contains(but, v.Name) {
				return fmt.Sprintf("volume object %s is there, %s, finalizers %v", v.Name, v.Status.Phase, v.Finalizers)
			}
		}
		if left := p.driver.Volumes(); len(left) > 0 {
			return fmt.Sprintf("the driver has %+v", left)
		}
		return ""
	})
}

// creations returns all requests of CreateVolume.
func (p *plane) creations() (all []*csipb.CreateVolumeRequest) {
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.CreateVolumeRequest); ok {
			all = append(all, r)
		}
	}
	return all
}

// gate holds the first call of a method, before its work or after it, until open is called. Then the call
// returns the error.
func (p *plane) gate(method string, after bool, err error) (called <-chan struct{}, open func()) {
	in, out := make(chan struct{}), make(chan struct{})
	p.driver.OnCall(method, func(n int, _ any) csitest.Action {
		if n > 1 {
			return csitest.Action{}
		}
		close(in)
		<-out
		return csitest.Action{After: after, Err: err}
	})
	return in, func() { close(out) }
}

// TestProvision: a claim gets a volume with all fields that other programs read. Both are deleted together.
func TestProvision(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast", func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{"tier": "1", "fsType": "xfs"}
		c.MountOptions = []string{"noatime"}
	})
	p.createClaim("c", "fast")
	p.waitForBound("c")
	p.waitForSettled()
	c := p.getClaim("c")
	v := p.getVolume("pvc-" + string(c.UID))
	for what, ok := range map[string]bool{
		"request in both spellings": c.Annotations[volume.AnnStorageProvisioner] == p.conn.Name &&
			c.Annotations[volume.AnnBetaStorageProvisioner] == p.conn.Name,
		"the claim names the volume": c.Spec.VolumeName == v.Name,
		"the volume names the claim": v.Spec.ClaimRef.UID == c.UID,
		"who made it":                v.Annotations[volume.AnnProvisionedBy] == p.conn.Name,
		"class, policy and options": v.Spec.StorageClassName == "fast" &&
			v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
			slices.Equal(v.Spec.MountOptions, []string{"noatime"}),
		"filesystem type":                v.Spec.CSI.FSType == "xfs",
		"kept until the driver is asked": slices.Contains(v.Finalizers, volume.FinalizerProvisioner),
		"parameters (S1-026)": p.creations()[0].GetParameters()["fsType"] == "xfs" &&
			p.creations()[0].GetParameters()["tier"] == "1",
		"filesystem of the capability": p.creations()[0].GetVolumeCapabilities()[0].GetMount().GetFsType() == "xfs",
	} {
		if !ok {
			t.Errorf("%s: claim %+v, volume %+v, call %+v", what, c.Annotations, v, p.creations()[0])
		}
	}
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioningSucceeded, v.Name)
	p.agrees()
	p.deleteClaim("c")
	p.nothingLeft()
	p.waitForNoClaim("c")
}

// sameArguments requires at least this many calls of CreateVolume, all with the same arguments.
func (p *plane) sameArguments(least int) {
	p.t.Helper()
	all := p.creations()
	if len(all) < least {
		p.t.Errorf("%d calls of CreateVolume, want %d", len(all), least)
	}
	for _, r := range all[1:] {
		if !proto.Equal(r, all[0]) {
			p.t.Errorf("called with %v, then with %v", all[0], r)
		}
	}
}

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

// TestDefaultClass: a claim without a class gets the default class when it is created (S4-012), and of two
// default classes the newer one.
func TestDefaultClass(t *testing.T) {
	p := newPlane(t)
	usual := func(c *storagev1.StorageClass) { c.Annotations = map[string]string{volume.AnnDefaultClass: "true"} }
	nameless := func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }
	p.createClass("plain")
	p.createClass("usual", usual)
	// The admission reads a cache of its own.
	p.eventually(func() string {
		c, err := p.client.CoreV1().PersistentVolumeClaims("default").Create(p.ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "dry"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
				},
			},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		p.must(err)
		if got := ptr.Deref(c.Spec.StorageClassName, ""); got != "usual" {
			return fmt.Sprintf("a new claim gets class %q", got)
		}
		return ""
	})
	p.createClaim("c", "", nameless)
	if got := ptr.Deref(p.getClaim("c").Spec.StorageClassName, ""); got != "usual" {
		t.Errorf("the claim's class is %q", got)
	}
	p.waitForBound("c")
	if v := p.getVolume(p.getClaim("c").Spec.VolumeName); v.Spec.StorageClassName != "usual" {
		t.Errorf("the volume's class is %q", v.Spec.StorageClassName)
	}
	p.createClaim("classless", "")
	p.waitForEvent("PersistentVolumeClaim", "classless", volume.ReasonFailedBinding)
	p.waitForClaimPhase("classless", corev1.ClaimPending, "")
}
