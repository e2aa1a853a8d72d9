package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/upstream"
)

// scene is a test in one namespace. Its class has the same name.
type scene struct {
	t            *testing.T
	ctx          context.Context
	mixedCluster *mixedCluster
	client       kubernetes.Interface
	driver       *csitest.Driver
	name         string
	// before is how many calls the driver had when the scene began.
	before int
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) eventually(notYet func() string) {
	s.t.Helper()
	upstream.Eventually(s.ctx, s.t, notYet)
}

func (s *scene) class(
	mode storagev1.VolumeBindingMode, policy corev1.PersistentVolumeReclaimPolicy, provisioner string,
) {
	s.t.Helper()
	_, err := s.client.StorageV1().StorageClasses().Create(s.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.name}, Provisioner: provisioner, VolumeBindingMode: &mode,
		ReclaimPolicy: &policy,
	}, metav1.CreateOptions{})
	s.must(err)
}

func (s *scene) makeClaim(c *corev1.PersistentVolumeClaim) {
	s.t.Helper()
	_, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Create(s.ctx, c, metav1.CreateOptions{})
	s.must(err)
}

func (s *scene) claim(name string) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	c, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	return c
}

func (s *scene) deleteClaim(name string) {
	s.t.Helper()
	s.must(s.client.CoreV1().PersistentVolumeClaims(s.name).Delete(s.ctx, name, metav1.DeleteOptions{}))
}

func (s *scene) volume(name string) *corev1.PersistentVolume {
	s.t.Helper()
	v, err := s.client.CoreV1().PersistentVolumes().Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	return v
}

// patchVolume applies a merge patch.
func (s *scene) patchVolume(name, patch string) {
	s.t.Helper()
	_, err := s.client.CoreV1().PersistentVolumes().Patch(s.ctx, name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	s.must(err)
}

// bound waits until a claim and its volume are bound to each other.
func (s *scene) bound(claim string) *corev1.PersistentVolume {
	s.t.Helper()
	var v *corev1.PersistentVolume
	s.eventually(func() string {
		c, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Get(s.ctx, claim, metav1.GetOptions{})
		if err != nil || c.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("claim %s is not bound: %v", claim, err)
		}
		if v = s.volume(c.Spec.VolumeName); v.Status.Phase != corev1.VolumeBound || v.Spec.ClaimRef == nil ||
			v.Spec.ClaimRef.UID != c.UID {
			return fmt.Sprintf("volume %s is %s and of %v", v.Name, v.Status.Phase, v.Spec.ClaimRef)
		}
		return ""
	})
	return v
}

func (s *scene) phase(volume string, want corev1.PersistentVolumePhase) {
	s.t.Helper()
	s.eventually(func() string {
		if v := s.volume(volume); v.Status.Phase != want {
			return fmt.Sprintf("volume %s is %s, want %s", volume, v.Status.Phase, want)
		}
		return ""
	})
}

// pod creates a Pod for the scheduler.
func (s *scene) pod(name string, source corev1.VolumeSource, selector map[string]string) {
	s.t.Helper()
	_, err := s.client.CoreV1().Pods(s.name).Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: selector, AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Volumes:    []corev1.Volume{{Name: "data", VolumeSource: source}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
}

// claimSource returns a volume of a Pod that uses a claim.
func claimSource(name string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

// placed waits until a Pod has a node and returns the node's zone.
func (s *scene) placed(pod string) string {
	s.t.Helper()
	node := ""
	s.eventually(func() string {
		p, err := s.client.CoreV1().Pods(s.name).Get(s.ctx, pod, metav1.GetOptions{})
		s.must(err)
		if node = p.Spec.NodeName; node == "" {
			return fmt.Sprintf("pod %s has no node: %v", pod, p.Status.Conditions)
		}
		return ""
	})
	return strings.TrimPrefix(node, "n-")
}

// waits waits until the scheduler has found no node for a Pod.
func (s *scene) waits(pod string) {
	s.t.Helper()
	s.eventually(func() string {
		p, err := s.client.CoreV1().Pods(s.name).Get(s.ctx, pod, metav1.GetOptions{})
		s.must(err)
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return ""
			}
		}
		return fmt.Sprintf("the scheduler has not refused pod %s: %v", pod, p.Status.Conditions)
	})
}

func (s *scene) deletePod(name string) {
	s.t.Helper()
	s.must(s.client.CoreV1().Pods(s.name).Delete(s.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
}

// cordon makes a node unschedulable, or schedulable.
func (s *scene) cordon(node string, on bool) {
	s.t.Helper()
	_, err := s.client.CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on), metav1.PatchOptions{})
	s.must(err)
}

// selected waits until the scheduler has selected a node for a claim, and
// returns the node's zone.
func (s *scene) selected(claim string) string {
	s.t.Helper()
	node := ""
	s.eventually(func() string {
		if node = s.claim(claim).Annotations[volume.AnnSelectedNode]; node == "" {
			return "no node is selected for claim " + claim
		}
		return ""
	})
	return strings.TrimPrefix(node, "n-")
}

// gone waits until a claim does not exist.
func (s *scene) gone(claim string) {
	s.t.Helper()
	s.eventually(func() string {
		c, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Get(s.ctx, claim, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("claim %s still exists: %v, %v", claim, err, c.Finalizers)
	})
}

// asked returns the requests for a claim's volume.
func (s *scene) asked(c *corev1.PersistentVolumeClaim) []*csipb.CreateVolumeRequest {
	var out []*csipb.CreateVolumeRequest
	for _, call := range s.driver.Calls()[s.before:] {
		if r, ok := call.Request.(*csipb.CreateVolumeRequest); ok && r.GetName() == "pvc-"+string(c.UID) {
			out = append(out, r)
		}
	}
	return out
}

// isIn requires that the request for a volume prefers a zone and allows all zones, and that the volume is
// accessible from this zone only.
func (s *scene) isIn(where string, claim string, v *corev1.PersistentVolume) {
	s.t.Helper()
	all := s.asked(s.claim(claim))
	if len(all) == 0 {
		s.t.Fatalf("no volume was asked for claim %s", claim)
	}
	requisite, preferred := zones(all[len(all)-1])
	if ordered(requisite) != "abc" || ordered(preferred) != "abc" || preferred[:1] != where {
		s.t.Errorf("claim %s: requisite %s, preferred %s, want all beginning with %s", claim, requisite, preferred, where)
	}
	want := onlyIn(where)
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.String() != want.String() {
		s.t.Errorf("claim %s: the volume's affinity is %v, want %v", claim, v.Spec.NodeAffinity, want)
	}
}

func onlyIn(where string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: upstream.Zone, Operator: corev1.NodeSelectorOpIn, Values: []string{where}},
		},
	}}}}
}

// restartAfter ends the provisioner when a call has begun, and starts it again.
func (s *scene) restartAfter(begun chan struct{}) {
	s.t.Helper()
	select {
	case <-begun:
	case <-s.ctx.Done():
		s.t.Fatal("what the provisioner was to be ended in did not begin")
	}
	s.mixedCluster.stop()
	s.mixedCluster.start()
}

// over waits until nothing is left.
func (s *scene) over() {
	s.t.Helper()
	s.eventually(func() string {
		claims, err := s.client.CoreV1().PersistentVolumeClaims(s.name).List(s.t.Context(), metav1.ListOptions{})
		s.must(err)
		volumes, err := s.client.CoreV1().PersistentVolumes().List(s.t.Context(), metav1.ListOptions{})
		s.must(err)
		if left := s.driver.Volumes(); len(claims.Items)+len(volumes.Items)+len(left) > 0 {
			return fmt.Sprintf("%d claims, %d volumes, at the driver %v are left", len(claims.Items), len(volumes.Items), left)
		}
		return ""
	})
	for _, o := range s.driver.Overlaps() {
		s.t.Error(o)
	}
}

// events logs all events.
func (s *scene) events() {
	all, err := s.client.CoreV1().Events("").List(context.WithoutCancel(s.ctx), metav1.ListOptions{})
	if err != nil {
		s.t.Log(err)
		return
	}
	for _, e := range all.Items {
		if o := e.InvolvedObject; o.Namespace == s.name || o.Namespace == "" {
			s.t.Log(o.Kind, o.Name, e.Reason, e.Message, e.Source.Component, e.ReportingController)
		}
	}
}
