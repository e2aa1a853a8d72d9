package integration

import (
	"fmt"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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

// TestSlowDriver: an event of the claim says that the driver works, if the call takes long.
func TestSlowDriver(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	called, open := p.gate("CreateVolume", true, nil)
	p.createClaim("c", "fast")
	<-called
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioning, p.conn.Name,
		"pvc-"+string(p.getClaim("c").UID))
	open()
	p.waitForBound("c")
	p.agrees()
}

// TestWaitForFirstConsumer: the driver is not called before there is a node.
func TestWaitForFirstConsumer(t *testing.T) {
	p := newPlane(t)
	p.createLateClass("late", p.conn.Name)
	p.createClaim("c", "late")
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonWaitForFirstConsumer,
		"waiting for first consumer to be created before binding")
	p.createPod("web", "", "c", "other")
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonWaitForPodScheduled, "web")
	p.waitForClaimPhase("c", corev1.ClaimPending, "")
	if n := p.calls("CreateVolume"); n > 0 {
		t.Errorf("%d calls of CreateVolume before a node was selected", n)
	}
	p.createClaim("other", "late")
	node := p.waitForPlacement("web")
	p.waitForBound("c")
	if got := p.getClaim("c").Annotations[volume.AnnSelectedNode]; got != node {
		t.Errorf("node %q is selected, the pod is on %s", got, node)
	}
}

// TestClaimGoneDuringTheCall: whatever CreateVolume did in the meantime, nothing is left.
func TestClaimGoneDuringTheCall(t *testing.T) {
	for _, c := range []struct {
		name  string
		after bool
		err   error
	}{
		{"made", true, nil},
		{"made, and the answer is lost", true, status.Error(codes.Unavailable, "lost")},
		{"not made, and not known", false, status.Error(codes.Aborted, "busy")},
		{"made, and said to have failed", true, status.Error(codes.Internal, "no")},
		{"made, and said what CSI does not know", true, status.Error(codes.Unknown, "no")},
		{"not made, finally", false, status.Error(codes.InvalidArgument, "no")},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlane(t)
			p.createClass("fast")
			called, open := p.gate("CreateVolume", c.after, c.err)
			p.createClaim("c", "fast")
			<-called
			p.deleteClaim("c")
			p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, "fast", metav1.DeleteOptions{}))
			open()
			p.waitForNoClaim("c")
			p.waitForSettled()
			p.nothingLeft()
		})
	}
}

// TestClassGoneDuringTheCall: the volume is made as the class was when the first call began, in every
// repetition.
func TestClassGoneDuringTheCall(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("made again %v", again), func(t *testing.T) {
			p := newPlane(t)
			keeps := func(c *storagev1.StorageClass) {
				c.ReclaimPolicy, c.Parameters = ptr.To(corev1.PersistentVolumeReclaimRetain), map[string]string{"tier": "1"}
			}
			p.createClass("fast", keeps)
			called, open := p.gate("CreateVolume", true, status.Error(codes.DeadlineExceeded, "slow"))
			p.createClaim("c", "fast")
			<-called
			p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, "fast", metav1.DeleteOptions{}))
			if again {
				p.createClass("fast", func(c *storagev1.StorageClass) {
					c.Provisioner, c.Parameters = "other.example.com", map[string]string{"tier": "2"}
				})
			}
			open()
			p.waitForBound("c")
			p.waitForSettled()
			if v := p.getVolume(p.getClaim("c").Spec.VolumeName); v.Spec.PersistentVolumeReclaimPolicy !=
				corev1.PersistentVolumeReclaimRetain {
				t.Errorf("the volume's policy is %s", v.Spec.PersistentVolumeReclaimPolicy)
			}
			p.sameArguments(2)
			p.agrees()
		})
	}
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

// TestCreateVolumeFails: CreateVolume fails in every possible way, and succeeds in the end.
func TestCreateVolumeFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		action csitest.Action
		words  string
	}{
		{
			"finally", csitest.Action{Err: status.Error(codes.InvalidArgument, "no such tier")}, "InvalidArgument: no such tier",
		},
		{"by time", csitest.Action{After: true, Err: status.Error(codes.DeadlineExceeded, "slow")}, "DeadlineExceeded: slow"},
		{"with work under way", csitest.Action{Err: status.Error(codes.Aborted, "pending")}, "Aborted: pending"},
		{
			"by lost connection", csitest.Action{After: true, Err: status.Error(codes.Unavailable, "away")}, "Unavailable: away",
		},
		{"for want of room, with nowhere else to go", csitest.Action{
			Err: status.Error(codes.ResourceExhausted, "full"),
		}, "ResourceExhausted: full"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlane(t)
			p.createClass("fast")
			p.driver.OnCall("CreateVolume", func(n int, _ any) csitest.Action {
				if n > 2 {
					return csitest.Action{}
				}
				return c.action
			})
			p.createClaim("c", "fast")
			p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed, c.words)
			p.waitForBound("c")
			p.waitForSettled()
			p.sameArguments(3)
			p.agrees()
		})
	}
}

// TestFullNode: with late binding, a node whose segment is full is given up, and placement selects another
// one.
func TestFullNode(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) {
		c.Plugin.AccessibilityConstraints, c.Segments = true, map[string]string{"zone": "here"}
	})
	p.stop()
	for _, n := range []string{"n1", "n2"} {
		_, err := p.client.CoreV1().Nodes().Patch(p.ctx, n, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"zone":"here"}}}`), metav1.PatchOptions{})
		p.must(err)
		node, err := p.client.StorageV1().CSINodes().Get(p.ctx, n, metav1.GetOptions{})
		p.must(err)
		// The drivers of a CSINode cannot be changed, only registered again.
		p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, n, metav1.DeleteOptions{}))
		node.ObjectMeta = metav1.ObjectMeta{Name: n}
		node.Spec.Drivers[0].TopologyKeys = []string{"zone"}
		_, err = p.client.StorageV1().CSINodes().Create(p.ctx, node, metav1.CreateOptions{})
		p.must(err)
	}
	p.start()
	called, open := p.gate("CreateVolume", false, status.Error(codes.ResourceExhausted, "full"))
	p.createLateClass("late", p.conn.Name)
	p.createClaim("c", "late")
	w, err := p.client.CoreV1().PersistentVolumeClaims("default").Watch(p.ctx, metav1.ListOptions{})
	p.must(err)
	defer w.Stop()
	p.createPod("web", "", "c")
	<-called
	if got := p.creations()[0].GetAccessibilityRequirements().GetPreferred(); len(got) != 1 ||
		got[0].GetSegments()["zone"] != "here" {
		t.Errorf("preferred is %v", got)
	}
	open()
	p.waitForPlacement("web")
	p.waitForBound("c")
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed, "full")
	// The claim had a node, then none, then one again.
	var story []bool
	for story = nil; len(story) < 4; {
		c := (<-w.ResultChan()).Object.(*corev1.PersistentVolumeClaim)
		if has := c.Annotations[volume.AnnSelectedNode] != ""; len(story) == 0 || has != story[len(story)-1] {
			story = append(story, has)
		}
	}
	if !slices.Equal(story, []bool{false, true, false, true}) {
		t.Errorf("selected: %v", story)
	}
	if v := p.getVolume(p.getClaim("c").Spec.VolumeName); v.Spec.NodeAffinity == nil {
		t.Error("the driver's topology is not the volume's")
	}
	p.agrees()
}

// TestRestartDuringTheCall: the controllers stop while the driver works, and lose their memory. The claim
// is deleted in the meantime, or not. The driver is registered when the controllers start, or registers
// after they have reported that it is missing.
func TestRestartDuringTheCall(t *testing.T) {
	for _, c := range []struct{ deleted, late bool }{{}, {deleted: true}, {deleted: true, late: true}} {
		deleted := c.deleted
		t.Run(fmt.Sprintf("deleted %v late %v", deleted, c.late), func(t *testing.T) {
			p := newPlane(t)
			p.createClass("fast")
			p.driver.OnCall("CreateVolume", func(int, any) csitest.Action { return csitest.Action{After: true, Hang: true} })
			p.createClaim("c", "fast")
			p.eventually(func() string {
				if len(p.driver.Volumes()) == 0 {
					return "the driver has made nothing"
				}
				return ""
			})
			p.stop()
			p.driver.OnCall("CreateVolume", nil)
			if deleted {
				p.deleteClaim("c")
			}
			p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, "fast", metav1.DeleteOptions{}))
			if c.late {
				p.drivers.Remove(p.conn)
			}
			p.start()
			if c.late {
				p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonDriverMissing, p.driver.Name())
				p.drivers.Put(p.conn)
			}
			if deleted {
				p.waitForNoClaim("c")
				p.waitForSettled()
				p.nothingLeft()
				return
			}
			p.waitForBound("c")
			p.waitForSettled()
			p.sameArguments(2)
			p.agrees()
		})
	}
}

// TestVolumeDeletedFirst: the volume object is deleted before its claim. It exists as long as the claim
// does, and then its reclaim policy is followed.
func TestVolumeDeletedFirst(t *testing.T) {
	for name, policy := range map[string]corev1.PersistentVolumeReclaimPolicy{
		"Delete": corev1.PersistentVolumeReclaimDelete, "Retain": corev1.PersistentVolumeReclaimRetain,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t)
			p.createClass("fast", func(c *storagev1.StorageClass) { c.ReclaimPolicy = &policy })
			p.createClaim("c", "fast")
			p.waitForBound("c")
			p.waitForSettled()
			name := p.getClaim("c").Spec.VolumeName
			p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, name, metav1.DeleteOptions{}))
			// Another claim's whole life leaves time to do the wrong thing.
			p.createClaim("other", "fast")
			p.waitForBound("other")
			p.deleteClaim("other")
			p.waitForNoClaim("other")
			if v := p.getVolume(name); v.Status.Phase != corev1.VolumeBound || p.calls("DeleteVolume") > 1 {
				t.Errorf("volume is %s after %d deletions", v.Status.Phase, p.calls("DeleteVolume"))
			}
			p.waitForClaimPhase("c", corev1.ClaimBound, name)
			p.deleteClaim("c")
			p.waitForNoClaim("c")
			p.eventually(func() string {
				if _, err := p.client.CoreV1().PersistentVolumes().Get(p.ctx, name, metav1.GetOptions{}); !gone(err) {
					return fmt.Sprintf("volume object %s is there: %v", name, err)
				}
				return ""
			})
			kept := slices.ContainsFunc(p.driver.Volumes(), func(v csitest.Volume) bool { return v.Name == name })
			if kept != (policy == corev1.PersistentVolumeReclaimRetain) {
				t.Errorf("with policy %s the driver has %+v", policy, p.driver.Volumes())
			}
		})
	}
}

// TestDeleteWaitsForDetach: a volume that a node still uses is not deleted.
func TestDeleteWaitsForDetach(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	p.createClaim("c", "fast")
	p.waitForBound("c")
	v := p.getVolume(p.getClaim("c").Spec.VolumeName)
	p.createPod("web", "n1", "c")
	p.waitForAttached("n1", v.Spec.CSI.VolumeHandle)
	p.reportInUse("n1", v.Spec.CSI.VolumeHandle)
	p.deletePod("web")
	p.deleteClaim("c")
	p.waitForNoClaim("c")
	p.waitForVolumePhase(v.Name, corev1.VolumeReleased)
	p.waitForEvent("PersistentVolume", v.Name, volume.ReasonStillAttached, "csi-")
	if n := p.calls("DeleteVolume"); n > 0 {
		t.Errorf("DeleteVolume was called for a volume that is attached, %d times", n)
	}
	p.reportInUse("n1")
	p.nothingLeft()
}

// TestDeleteVolumeFails: a failed deletion is repeated until it succeeds.
func TestDeleteVolumeFails(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	p.createClaim("c", "fast")
	p.waitForBound("c")
	name := p.getClaim("c").Spec.VolumeName
	p.driver.OnCall("DeleteVolume", func(n int, _ any) csitest.Action {
		if n > 3 {
			return csitest.Action{}
		}
		return csitest.Action{Err: status.Error(codes.Internal, "disk is on fire")}
	})
	p.deleteClaim("c")
	p.waitForEvent("PersistentVolume", name, volume.ReasonFailedDelete, "disk is on fire")
	p.nothingLeft()
}

// TestDriverThatMakesNoVolumes: the event about a driver that cannot create volumes differs from the one
// about a missing driver.
func TestDriverThatMakesNoVolumes(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) { c.Controller.CreateDelete = false })
	p.createClass("fast")
	p.createClaim("c", "fast")
	p.waitForEvent("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed, p.conn.Name, "has registered",
		"CREATE_DELETE_VOLUME")
	p.createVolume("v", "2Gi", "", func(v *corev1.PersistentVolume) {
		v.Annotations = map[string]string{volume.AnnProvisionedBy: p.conn.Name}
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	})
	p.createClaim("d", "")
	p.waitForClaimPhase("d", corev1.ClaimBound, "v")
	p.deleteClaim("d")
	p.waitForEvent("PersistentVolume", "v", volume.ReasonFailedDelete, "CREATE_DELETE_VOLUME")
	// Another's class is another's business.
	p.createClass("foreign", func(c *storagev1.StorageClass) { c.Provisioner = "other.example.com" })
	p.createClaim("e", "foreign")
	p.waitForEvent("PersistentVolumeClaim", "e", volume.ReasonExternalProvisioning, "other.example.com")
	if n := p.calls("CreateVolume") + p.calls("DeleteVolume"); n > 0 {
		t.Errorf("the driver was called %d times for what it cannot do", n)
	}
}
