package kube

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/upstream"
)

const (
	atOnce   = storagev1.VolumeBindingImmediate
	whenUsed = storagev1.VolumeBindingWaitForFirstConsumer
	deletes  = corev1.PersistentVolumeReclaimDelete
	retains  = corev1.PersistentVolumeReclaimRetain
)

// immediate: a claim is provisioned and deleted.
func immediate(s *scene) {
	s.class(atOnce, deletes, s.driver.Name())
	s.makeClaim(upstream.ClaimOf("c", s.name))
	v := s.bound("c")
	_, preferred := zones(s.asked(s.claim("c"))[0])
	s.isIn(preferred[:1], "c", v)
	s.deleteClaim("c")
}

// late: the scheduler chooses the node, the volume is created there, and the Pod is bound to the node. The
// claim exists as long as the Pod.
func late(s *scene) {
	s.class(whenUsed, deletes, s.driver.Name())
	s.makeClaim(upstream.ClaimOf("c", s.name))
	s.pod("p", claimSource("c"), nil)
	where := s.placed("p")
	v := s.bound("c")
	s.isIn(where, "c", v)
	if got := s.claim("c").Annotations[volume.AnnSelectedNode]; got != "n-"+where {
		s.t.Errorf("the pod is in zone %s, the selected node is %q", where, got)
	}
	s.deleteClaim("c")
	// The volume's second claim is created after the first one's deletion was observed, so a claim that is released too
	// early is gone by then.
	s.makeClaim(upstream.ClaimOf("other", s.name))
	s.pod("other", claimSource("other"), map[string]string{upstream.Zone: where})
	s.placed("other")
	if c := s.claim("c"); c.DeletionTimestamp == nil {
		s.t.Error("the claim is not being deleted")
	}
	s.deletePod("p")
	s.gone("c")
	s.deletePod("other")
	s.deleteClaim("other")
}

// full: there is no room where the scheduler wants the volume, so it must choose another node. It may
// choose the same node many times, so an administrator cordons the node.
func full(s *scene) {
	refused := make(chan string, 1)
	s.driver.OnCall("CreateVolume", func(_ int, req any) csitest.Action {
		_, preferred := zones(req.(*csipb.CreateVolumeRequest))
		where := preferred[:1]
		select {
		case refused <- where:
			// The first one.
		case taken := <-refused:
			refused <- taken
			if where != taken {
				return thereFirst(req)
			}
		}
		return csitest.Action{Err: status.Error(codes.ResourceExhausted, "no room is left in zone "+where)}
	})
	s.class(whenUsed, deletes, s.driver.Name())
	s.makeClaim(upstream.ClaimOf("c", s.name))
	s.pod("p", claimSource("c"), nil)
	taken := ""
	select {
	case taken = <-refused:
		refused <- taken
	case <-s.ctx.Done():
		s.t.Fatal("no volume was asked for")
	}
	s.cordon("n-"+taken, true)
	where := s.placed("p")
	s.isIn(where, "c", s.bound("c"))
	if got := s.claim("c").Annotations[volume.AnnSelectedNode]; got != "n-"+where || where == taken {
		s.t.Errorf("zone %s is full, the pod is in zone %s, the selected node is %q", taken, where, got)
	}
	s.cordon("n-"+taken, false)
	s.deletePod("p")
	s.deleteClaim("c")
}

// nodeGone: the node that was selected for the volume no longer exists, so the scheduler must choose another one.
func nodeGone(s *scene) {
	s.class(whenUsed, deletes, s.driver.Name())
	s.mixedCluster.stop()
	s.makeClaim(upstream.ClaimOf("c", s.name))
	s.pod("p", claimSource("c"), nil)
	lost := s.selected("c")
	s.must(s.client.StorageV1().CSINodes().Delete(s.ctx, "n-"+lost, metav1.DeleteOptions{}))
	s.must(s.client.CoreV1().Nodes().Delete(s.ctx, "n-"+lost, metav1.DeleteOptions{}))
	s.mixedCluster.start()
	where := s.placed("p")
	v := s.bound("c")
	if _, preferred := zones(s.asked(s.claim("c"))[0]); where == lost || preferred[:1] != where ||
		v.Spec.NodeAffinity.String() != onlyIn(where).String() {
		s.t.Errorf("the node in zone %s has gone, the pod is in zone %s, the volume was asked for in %s and is in %v", lost,
			where, preferred, v.Spec.NodeAffinity)
	}
	s.deletePod("p")
	s.deleteClaim("c")
	s.mixedCluster.cluster.Node(s.t, "n-"+lost, lost, s.driver.Name())
}

// set: the claims of a StatefulSet have volumes in different zones.
func set(s *scene) {
	s.class(atOnce, deletes, s.driver.Name())
	var where []string
	for _, name := range []string{"data-web-0", "data-web-1", "data-web-2"} {
		s.makeClaim(upstream.ClaimOf(name, s.name))
		s.bound(name)
		_, preferred := zones(s.asked(s.claim(name))[0])
		where = append(where, preferred[:1])
		s.deleteClaim(name)
	}
	slices.Sort(where)
	if got := strings.Join(where, ""); got != "abc" {
		s.t.Errorf("the volumes are in the zones %s", got)
	}
}

// retain: a retained volume gets another claim, and is deleted with it after its policy was changed.
func retain(s *scene) {
	s.class(atOnce, retains, s.driver.Name())
	s.makeClaim(upstream.ClaimOf("c", s.name))
	v := s.bound("c")
	s.deleteClaim("c")
	s.gone("c")
	s.phase(v.Name, corev1.VolumeReleased)
	if n := len(s.driver.Volumes()); n != 1 {
		s.t.Errorf("the driver has %d volumes", n)
	}
	s.patchVolume(v.Name, `{"spec":{"claimRef":null}}`)
	s.phase(v.Name, corev1.VolumeAvailable)
	next := upstream.ClaimOf("next", s.name)
	next.Spec.VolumeName = v.Name
	s.makeClaim(next)
	if got := s.bound("next"); got.Name != v.Name {
		s.t.Errorf("the claim has volume %s, want %s", got.Name, v.Name)
	}
	s.patchVolume(v.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	s.deleteClaim("next")
}

// byHand: of the volumes that an administrator created, the scheduler reserves the one that the Pod can
// reach, and a Pod waits for such a volume. A volume that the administrator reserved for a claim is bound
// immediately, and the Pod is placed there.
func byHand(s *scene) {
	s.class(whenUsed, retains, volume.NoProvisioner)
	all := []string{"b", "c", "c-2", "a"}
	make := func(name string, reserved *corev1.ObjectReference) {
		_, err := s.client.CoreV1().PersistentVolumes().Create(s.ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: s.name, NodeAffinity: onlyIn(name[:1]), PersistentVolumeReclaimPolicy: retains,
				ClaimRef:    reserved,
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{Driver: s.driver.Name(), VolumeHandle: name},
				},
			},
		}, metav1.CreateOptions{})
		s.must(err)
	}
	has := func(pod, volume string) {
		if where := s.placed(pod); where != volume[:1] {
			s.t.Errorf("pod %s is in zone %s", pod, where)
		}
		if v := s.bound(pod); v.Name != volume {
			s.t.Errorf("claim %s has volume %s", pod, v.Name)
		}
	}
	make("b", nil)
	make("c", nil)
	s.phase("c", corev1.VolumeAvailable)
	s.makeClaim(upstream.ClaimOf("one", s.name))
	s.pod("one", claimSource("one"), map[string]string{upstream.Zone: "c"})
	has("one", "c")
	s.phase("b", corev1.VolumeAvailable)

	s.makeClaim(upstream.ClaimOf("two", s.name))
	s.pod("two", claimSource("two"), map[string]string{upstream.Zone: "c"})
	s.waits("two")
	make("c-2", nil)
	has("two", "c-2")

	make("a", &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: s.name, Name: "three"})
	s.phase("a", corev1.VolumeAvailable)
	s.makeClaim(upstream.ClaimOf("three", s.name))
	s.bound("three")
	s.pod("three", claimSource("three"), nil)
	has("three", "a")

	for _, name := range []string{"one", "two", "three"} {
		s.deletePod(name)
		v := s.claim(name).Spec.VolumeName
		s.deleteClaim(name)
		s.phase(v, corev1.VolumeReleased)
	}
	for _, name := range all {
		s.must(s.client.CoreV1().PersistentVolumes().Delete(s.ctx, name, metav1.DeleteOptions{}))
	}
}

// ephemeral: a generic ephemeral volume is created and deleted with its Pod.
func ephemeral(s *scene) {
	s.class(whenUsed, deletes, s.driver.Name())
	s.pod("p", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: upstream.ClaimOf("", s.name).Spec},
	}}, nil)
	where := s.placed("p")
	s.isIn(where, "p-data", s.bound("p-data"))
	s.deletePod("p")
}

// restart: the provisioner is restarted while the driver creates a volume, and again while it deletes it.
// Both calls are repeated.
func restart(s *scene) {
	s.class(atOnce, deletes, s.driver.Name())
	interrupt := func(method string) (begun chan struct{}) {
		begun = make(chan struct{})
		var n atomic.Int32
		s.driver.OnCall(method, func(_ int, req any) csitest.Action {
			if n.Add(1) == 1 {
				close(begun)
				return csitest.Action{After: true, Hang: true}
			}
			if method == "CreateVolume" {
				return thereFirst(req)
			}
			return csitest.Action{}
		})
		return begun
	}
	begun := interrupt("CreateVolume")
	s.makeClaim(upstream.ClaimOf("c", s.name))
	s.restartAfter(begun)
	s.bound("c")
	if all := s.asked(s.claim("c")); len(all) != 2 || !proto.Equal(all[0], all[1]) {
		s.t.Errorf("the driver was asked %v", all)
	}
	begun = interrupt("DeleteVolume")
	s.deleteClaim("c")
	s.restartAfter(begun)
}

// manyPods is the number of Pods and claims that are created at the same time.
const manyPods = 20

// many: claims of many Pods are created at the same time, and the provisioner is restarted while their
// volumes are created and while they are deleted.
func many(s *scene) {
	s.class(whenUsed, deletes, s.driver.Name())
	restartAt := func(method string, f func(req any) csitest.Action) (restart func()) {
		begun := make(chan struct{})
		var n atomic.Int32
		s.driver.OnCall(method, func(_ int, req any) csitest.Action {
			if n.Add(1) == manyPods/2 {
				close(begun)
			}
			return f(req)
		})
		return func() { s.restartAfter(begun) }
	}
	restart := restartAt("CreateVolume", thereFirst)
	var names []string
	for i := range manyPods {
		names = append(names, fmt.Sprint("web-", i))
		s.makeClaim(upstream.ClaimOf(names[i], s.name))
		s.pod(names[i], claimSource(names[i]), nil)
	}
	restart()
	for _, name := range names {
		s.isIn(s.placed(name), name, s.bound(name))
		if all := s.asked(s.claim(name)); len(all) > 2 || !proto.Equal(all[0], all[len(all)-1]) {
			s.t.Errorf("for claim %s the driver was asked %v", name, all)
		}
	}
	if n := len(s.driver.Volumes()); n != manyPods {
		s.t.Errorf("the driver has %d volumes", n)
	}
	restart = restartAt("DeleteVolume", func(any) csitest.Action { return csitest.Action{} })
	for _, name := range names {
		s.deletePod(name)
		s.deleteClaim(name)
	}
	restart()
}
