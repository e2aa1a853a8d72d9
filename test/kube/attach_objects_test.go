package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

// theirAttachDetach runs the controller of Kubernetes that decides which volumes
// are attached to which nodes until the test ends, or until the returned
// function is called. It looks every second, the shortest time that it takes,
// whether what it has attached is still so.
func (s side) theirAttachDetach(t *testing.T) (stop func()) {
	t.Helper()
	return s.run(t, "kube-controller-manager", "--leader-elect=false", "--secure-port=0", "--kube-api-qps=5000",
		"--kube-api-burst=5000",
		"--attach-detach-reconcile-sync-period=1s", "--controllers=persistentvolume-attach-detach-controller",
		fmt.Sprintf("--disable-force-detach-on-timeout=%t", s.patient),
		fmt.Sprint("--max-wait-for-unmount=", cmp.Or(s.maxUnmount, attach.MaxUnmount)))
}

// theirAttacher runs Kubernetes' attacher for a driver until the test ends, or
// until the returned function is called.
func (s side) theirAttacher(t *testing.T, driver *csitest.Driver) (stop func()) {
	t.Helper()
	return s.run(t, "csi-attacher", append(s.options, "--csi-address="+driver.Socket, "--kube-api-qps=5000",
		"--kube-api-burst=5000", "--timeout=1m", "--worker-threads=500", "--retry-interval-start=100ms",
		"--retry-interval-max="+longestRetry.String())...)
}

// makeNode makes a node that is ready, which the driver knows by an id.
func (s side) makeNode(ctx context.Context, name, id string) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.AnnControllerManagedAttach: "true"}},
	}
	if _, err := s.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	ready := map[string]any{"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
	if err := s.nodeStatus(ctx, name, ready); err != nil {
		return err
	}
	return s.makeCSINode(ctx, name, id, 0)
}

// makeCSINode has the driver registered on a node, which takes so many volumes of
// it; 0 is all.
func (s side) makeCSINode(ctx context.Context, name, id string, limit int32) error {
	d := storagev1.CSINodeDriver{Name: driverName, NodeID: id}
	if limit > 0 {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
	}
	n := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{d}},
	}
	_, err := s.client.StorageV1().CSINodes().Create(ctx, n, metav1.CreateOptions{})
	return err
}

func (s side) nodeStatus(ctx context.Context, name string, fields map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": fields})
	if err != nil {
		return err
	}
	return unmet(func() error {
		_, err := s.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// uses has a node say which volumes it uses, as a kubelet does.
func (s side) uses(ctx context.Context, node string, all ...corev1.UniqueVolumeName) error {
	if all == nil {
		all = []corev1.UniqueVolumeName{}
	}
	return s.nodeStatus(ctx, node, map[string]any{"volumesInUse": all})
}

// mayMount returns what a node is told that it may mount.
func (s side) mayMount(ctx context.Context, node string) ([]corev1.UniqueVolumeName, error) {
	n, err := s.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	var all []corev1.UniqueVolumeName
	for _, v := range n.Status.VolumesAttached {
		all = append(all, v.Name)
	}
	return all, err
}

// wire makes a volume at the driver, its object, and a claim that has it, as if
// they were bound. Nothing protects them: their protection does not run.
func (s side) wire(ctx context.Context, space, claim string, v *corev1.PersistentVolume) error {
	if v.Spec.CSI.Driver == driverName {
		mode := csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil)
		request := &csipb.CreateVolumeRequest{Name: v.Name, VolumeCapabilities: []*csipb.VolumeCapability{mode}}
		if _, err := s.storage.driver.CreateVolume(ctx, request); err != nil {
			return err
		}
	}
	c := claimOf(claim, "")
	c.Spec.AccessModes, c.Spec.VolumeMode, c.Spec.VolumeName = v.Spec.AccessModes, v.Spec.VolumeMode, v.Name
	c, err := s.client.CoreV1().PersistentVolumeClaims(space).Create(ctx, c, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	v.Spec.CSI.VolumeHandle = "id-" + v.Name
	v.Spec.ClaimRef = &corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: space, Name: claim, UID: c.UID,
	}
	if _, err := s.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := s.unprotect(ctx, v.Name); err != nil {
		return err
	}
	free := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := s.client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, claim, types.MergePatchType, free,
		metav1.PatchOptions{}); err != nil {
		return err
	}
	bound := []byte(`{"status":{"phase":"Bound"}}`)
	_, err = s.client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, claim, types.MergePatchType, bound,
		metav1.PatchOptions{}, "status")
	return err
}

// unprotect takes from a volume object what the API server keeps it by, and
// nothing that a controller has added meanwhile.
func (s side) unprotect(ctx context.Context, name string) error {
	return unmet(func() error {
		v, err := s.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == volume.FinalizerVolumeProtection })
		_, err = s.client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
		return err
	})
}

func csiVolume(name, driver string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: modes,
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
	}}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver}
	return v
}

// makePod makes a Pod on a node that uses claims.
func (s side) makePod(ctx context.Context, space, name, node string, claims ...string) error {
	return s.createPod(ctx, space, metav1.ObjectMeta{Name: name}, node, claims)
}

// makeAnew makes a Pod of which there has been one.
func (s side) makeAnew(ctx context.Context, space, name, node string, claims ...string) error {
	return s.createPod(ctx, space,
		metav1.ObjectMeta{Name: name, Annotations: map[string]string{annAnew: "yes"}}, node, claims)
}

func (s side) createPod(ctx context.Context, space string, meta metav1.ObjectMeta, node string, claims []string) error {
	pod := &corev1.Pod{
		ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	for _, c := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	_, err := s.client.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// endPod takes a Pod away, as its kubelet does in the end.
func (s side) endPod(ctx context.Context, space, name string) error {
	return s.client.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
}
