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

// settled waits until there are no intents.
func (p *plane) settled() {
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

// agrees fails the test when the volumes at the driver are not those that
// objects stand for.
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

// nothingLeft waits until there are no volume objects but some, and no volumes
// at the driver.
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

// creations returns the requests of CreateVolume so far.
func (p *plane) creations() (all []*csipb.CreateVolumeRequest) {
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.CreateVolumeRequest); ok {
			all = append(all, r)
		}
	}
	return all
}

// gate has the first call of a method wait, after its work is done if after is
// true, until open is called, and then end with the error.
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

// TestProvision: a claim gets its volume, with all that others read, and both
// go together.
func TestProvision(t *testing.T) {
	p := newPlane(t)
	p.makeClass("fast", func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{"tier": "1", "fsType": "xfs"}
		c.MountOptions = []string{"noatime"}
	})
	p.makeClaim("c", "fast")
	p.bound("c")
	p.settled()
	c := p.claim("c")
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
	p.tells("PersistentVolumeClaim", "c", volume.ReasonProvisioningSucceeded, v.Name)
	p.agrees()
	p.removeClaim("c")
	p.nothingLeft()
	p.noClaim("c")
}

// TestSlowDriver: a claim's owner hears that the driver works, if it takes
// long.
func TestSlowDriver(t *testing.T) {
	p := newPlane(t)
	p.makeClass("fast")
	called, open := p.gate("CreateVolume", true, nil)
	p.makeClaim("c", "fast")
	<-called
	p.tells("PersistentVolumeClaim", "c", volume.ReasonProvisioning, p.conn.Name, "pvc-"+string(p.claim("c").UID))
	open()
	p.bound("c")
	p.agrees()
}

// TestWaitForFirstConsumer: the driver is not asked before there is a node.
func TestWaitForFirstConsumer(t *testing.T) {
	p := newPlane(t)
	p.lateClass("late", p.conn.Name)
	p.makeClaim("c", "late")
	p.tells("PersistentVolumeClaim", "c", volume.ReasonWaitForFirstConsumer,
		"waiting for first consumer to be created before binding")
	p.pod("web", "", "c", "other")
	p.tells("PersistentVolumeClaim", "c", volume.ReasonWaitForPodScheduled, "web")
	p.claimPhase("c", corev1.ClaimPending, "")
	if n := p.calls("CreateVolume"); n > 0 {
		t.Errorf("%d calls of CreateVolume before a node was selected", n)
	}
	p.makeClaim("other", "late")
	node := p.placed("web")
	p.bound("c")
	if got := p.claim("c").Annotations[volume.AnnSelectedNode]; got != node {
		t.Errorf("node %q is selected, the pod is on %s", got, node)
	}
}

// TestClaimGoneDuringTheCall: whatever CreateVolume did meanwhile, nothing is
// left.
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
			p.makeClass("fast")
			called, open := p.gate("CreateVolume", c.after, c.err)
			p.makeClaim("c", "fast")
			<-called
			p.removeClaim("c")
			p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, "fast", metav1.DeleteOptions{}))
			open()
			p.noClaim("c")
			p.settled()
			p.nothingLeft()
		})
	}
}

// TestClassGoneDuringTheCall: the volume is what the class said when it was
// asked for, in every repetition.
func TestClassGoneDuringTheCall(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("made again %v", again), func(t *testing.T) {
			p := newPlane(t)
			keeps := func(c *storagev1.StorageClass) {
				c.ReclaimPolicy, c.Parameters = ptr.To(corev1.PersistentVolumeReclaimRetain), map[string]string{"tier": "1"}
			}
			p.makeClass("fast", keeps)
			called, open := p.gate("CreateVolume", true, status.Error(codes.DeadlineExceeded, "slow"))
			p.makeClaim("c", "fast")
			<-called
			p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, "fast", metav1.DeleteOptions{}))
			if again {
				p.makeClass("fast", func(c *storagev1.StorageClass) {
					c.Provisioner, c.Parameters = "other.example.com", map[string]string{"tier": "2"}
				})
			}
			open()
			p.bound("c")
			p.settled()
			if v := p.getVolume(p.claim("c").Spec.VolumeName); v.Spec.PersistentVolumeReclaimPolicy !=
				corev1.PersistentVolumeReclaimRetain {
				t.Errorf("the volume's policy is %s", v.Spec.PersistentVolumeReclaimPolicy)
			}
			p.sameArguments(2)
			p.agrees()
		})
	}
}

// sameArguments wants CreateVolume to have been called at least so often, each
// time with the same arguments.
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

// TestCreateVolumeFails in every way that there is, and goes well in the end.
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
			p.makeClass("fast")
			p.driver.OnCall("CreateVolume", func(n int, _ any) csitest.Action {
				if n > 2 {
					return csitest.Action{}
				}
				return c.action
			})
			p.makeClaim("c", "fast")
			p.tells("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed, c.words)
			p.bound("c")
			p.settled()
			p.sameArguments(3)
			p.agrees()
		})
	}
}

// TestFullNode: with late binding, a node whose segment is full is given up,
// and placement selects one again.
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
		// The drivers of a CSINode cannot be changed, only told anew.
		p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, n, metav1.DeleteOptions{}))
		node.ObjectMeta = metav1.ObjectMeta{Name: n}
		node.Spec.Drivers[0].TopologyKeys = []string{"zone"}
		_, err = p.client.StorageV1().CSINodes().Create(p.ctx, node, metav1.CreateOptions{})
		p.must(err)
	}
	p.start()
	called, open := p.gate("CreateVolume", false, status.Error(codes.ResourceExhausted, "full"))
	p.lateClass("late", p.conn.Name)
	p.makeClaim("c", "late")
	w, err := p.client.CoreV1().PersistentVolumeClaims("default").Watch(p.ctx, metav1.ListOptions{})
	p.must(err)
	defer w.Stop()
	p.pod("web", "", "c")
	<-called
	if got := p.creations()[0].GetAccessibilityRequirements().GetPreferred(); len(got) != 1 ||
		got[0].GetSegments()["zone"] != "here" {
		t.Errorf("preferred is %v", got)
	}
	open()
	p.placed("web")
	p.bound("c")
	p.tells("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed, "full")
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
	if v := p.getVolume(p.claim("c").Spec.VolumeName); v.Spec.NodeAffinity == nil {
		t.Error("the driver's topology is not the volume's")
	}
	p.agrees()
}

// TestRestartDuringTheCall: the controllers stop while the driver works, and
// with them all that they know; the claim is deleted while they are away, or
// not; and the driver is there when they come back, or registers when they have
// said that they miss it.
func TestRestartDuringTheCall(t *testing.T) {
	for _, c := range []struct{ deleted, late bool }{{}, {deleted: true}, {deleted: true, late: true}} {
		deleted := c.deleted
		t.Run(fmt.Sprintf("deleted %v late %v", deleted, c.late), func(t *testing.T) {
			p := newPlane(t)
			p.makeClass("fast")
			p.driver.OnCall("CreateVolume", func(int, any) csitest.Action { return csitest.Action{After: true, Hang: true} })
			p.makeClaim("c", "fast")
			p.eventually(func() string {
				if len(p.driver.Volumes()) == 0 {
					return "the driver has made nothing"
				}
				return ""
			})
			p.stop()
			p.driver.OnCall("CreateVolume", nil)
			if deleted {
				p.removeClaim("c")
			}
			p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, "fast", metav1.DeleteOptions{}))
			if c.late {
				p.drivers.Remove(p.conn)
			}
			p.start()
			if c.late {
				p.tells("PersistentVolumeClaim", "c", volume.ReasonDriverMissing, p.driver.Name())
				p.drivers.Put(p.conn)
			}
			if deleted {
				p.noClaim("c")
				p.settled()
				p.nothingLeft()
				return
			}
			p.bound("c")
			p.settled()
			p.sameArguments(2)
			p.agrees()
		})
	}
}

// TestVolumeDeletedFirst: its claim keeps it; then its policy is followed.
func TestVolumeDeletedFirst(t *testing.T) {
	for name, policy := range map[string]corev1.PersistentVolumeReclaimPolicy{
		"Delete": corev1.PersistentVolumeReclaimDelete, "Retain": corev1.PersistentVolumeReclaimRetain,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t)
			p.makeClass("fast", func(c *storagev1.StorageClass) { c.ReclaimPolicy = &policy })
			p.makeClaim("c", "fast")
			p.bound("c")
			p.settled()
			name := p.claim("c").Spec.VolumeName
			p.must(p.client.CoreV1().PersistentVolumes().Delete(p.ctx, name, metav1.DeleteOptions{}))
			// Another claim's whole life leaves time to do the wrong thing.
			p.makeClaim("other", "fast")
			p.bound("other")
			p.removeClaim("other")
			p.noClaim("other")
			if v := p.getVolume(name); v.Status.Phase != corev1.VolumeBound || p.calls("DeleteVolume") > 1 {
				t.Errorf("volume is %s after %d deletions", v.Status.Phase, p.calls("DeleteVolume"))
			}
			p.claimPhase("c", corev1.ClaimBound, name)
			p.removeClaim("c")
			p.noClaim("c")
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
	p.makeClass("fast")
	p.makeClaim("c", "fast")
	p.bound("c")
	v := p.getVolume(p.claim("c").Spec.VolumeName)
	p.pod("web", "n1", "c")
	p.mayMount("n1", v.Spec.CSI.VolumeHandle)
	p.uses("n1", v.Spec.CSI.VolumeHandle)
	p.removePod("web")
	p.removeClaim("c")
	p.noClaim("c")
	p.volumePhase(v.Name, corev1.VolumeReleased)
	p.tells("PersistentVolume", v.Name, volume.ReasonStillAttached, "csi-")
	if n := p.calls("DeleteVolume"); n > 0 {
		t.Errorf("DeleteVolume was called for a volume that is attached, %d times", n)
	}
	p.uses("n1")
	p.nothingLeft()
}

// TestDeleteVolumeFails and is repeated until it does not.
func TestDeleteVolumeFails(t *testing.T) {
	p := newPlane(t)
	p.makeClass("fast")
	p.makeClaim("c", "fast")
	p.bound("c")
	name := p.claim("c").Spec.VolumeName
	p.driver.OnCall("DeleteVolume", func(n int, _ any) csitest.Action {
		if n > 3 {
			return csitest.Action{}
		}
		return csitest.Action{Err: status.Error(codes.Internal, "disk is on fire")}
	})
	p.removeClaim("c")
	p.tells("PersistentVolume", name, volume.ReasonFailedDelete, "disk is on fire")
	p.nothingLeft()
}

// TestDriverThatMakesNoVolumes is told from one that is not there.
func TestDriverThatMakesNoVolumes(t *testing.T) {
	p := newPlane(t, func(c *csitest.Config) { c.Controller.CreateDelete = false })
	p.makeClass("fast")
	p.makeClaim("c", "fast")
	p.tells("PersistentVolumeClaim", "c", volume.ReasonProvisioningFailed, p.conn.Name, "has registered",
		"CREATE_DELETE_VOLUME")
	p.makeVolume("v", "2Gi", "", func(v *corev1.PersistentVolume) {
		v.Annotations = map[string]string{volume.AnnProvisionedBy: p.conn.Name}
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	})
	p.makeClaim("d", "")
	p.claimPhase("d", corev1.ClaimBound, "v")
	p.removeClaim("d")
	p.tells("PersistentVolume", "v", volume.ReasonFailedDelete, "CREATE_DELETE_VOLUME")
	// Another's class is another's business.
	p.makeClass("foreign", func(c *storagev1.StorageClass) { c.Provisioner = "other.example.com" })
	p.makeClaim("e", "foreign")
	p.tells("PersistentVolumeClaim", "e", volume.ReasonExternalProvisioning, "other.example.com")
	if n := p.calls("CreateVolume") + p.calls("DeleteVolume"); n > 0 {
		t.Errorf("the driver was called %d times for what it cannot do", n)
	}
}
