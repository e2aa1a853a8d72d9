package differential

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/upstream"
)

// MakeNode creates a ready node, which the driver knows under an id.
func (s Side) MakeNode(ctx context.Context, name, id string) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.AnnControllerManagedAttach: "true"}},
	}
	if _, err := s.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	ready := map[string]any{"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
	if err := s.NodeStatus(ctx, name, ready); err != nil {
		return err
	}
	return s.MakeCSINode(ctx, name, id, 0)
}

// MakeCSINode registers the driver on a node, with an attach limit; 0 means no limit.
func (s Side) MakeCSINode(ctx context.Context, name, id string, limit int32) error {
	d := storagev1.CSINodeDriver{Name: DriverName, NodeID: id}
	if limit > 0 {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
	}
	n := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{d}},
	}
	_, err := s.Client.StorageV1().CSINodes().Create(ctx, n, metav1.CreateOptions{})
	return err
}

// NodeStatus patches fields of the status of a Node.
func (s Side) NodeStatus(ctx context.Context, name string, fields map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": fields})
	if err != nil {
		return err
	}
	return upstream.Unmet(func() error {
		_, err := s.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// Wire creates a volume at the driver, its object, and a claim, all as if bound. Nothing protects them: the controllers
// for that do not run.
func (s Side) Wire(ctx context.Context, space, claim string, v *corev1.PersistentVolume) error {
	if v.Spec.CSI.Driver == DriverName {
		mode := csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil)
		request := &csipb.CreateVolumeRequest{Name: v.Name, VolumeCapabilities: []*csipb.VolumeCapability{mode}}
		if _, err := s.Storage.Driver.CreateVolume(ctx, request); err != nil {
			return err
		}
	}
	c := upstream.ClaimOf(claim, "")
	c.Spec.AccessModes, c.Spec.VolumeMode, c.Spec.VolumeName = v.Spec.AccessModes, v.Spec.VolumeMode, v.Name
	c, err := s.Client.CoreV1().PersistentVolumeClaims(space).Create(ctx, c, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	v.Spec.CSI.VolumeHandle = "id-" + v.Name
	v.Spec.ClaimRef = &corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: space, Name: claim, UID: c.UID,
	}
	if _, err := s.Client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := s.Unprotect(ctx, v.Name); err != nil {
		return err
	}
	free := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := s.Client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, claim, types.MergePatchType, free,
		metav1.PatchOptions{}); err != nil {
		return err
	}
	bound := []byte(`{"status":{"phase":"Bound"}}`)
	_, err = s.Client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, claim, types.MergePatchType, bound,
		metav1.PatchOptions{}, "status")
	return err
}

// Unprotect removes from a volume object the finalizer of the API server, and nothing
// that a controller has added in the meantime.
func (s Side) Unprotect(ctx context.Context, name string) error {
	return upstream.Unmet(func() error {
		v, err := s.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == volume.FinalizerVolumeProtection })
		_, err = s.Client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
		return err
	})
}

// CSIVolume returns a retained PersistentVolume of 1Gi of a driver, without a handle.
func CSIVolume(name, driver string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: modes,
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
	}}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver}
	return v
}

// Bare removes the sequence's name from that of an object, and other parts that carry no
// more information.
func (s Side) Bare(name string) string {
	name = strings.TrimPrefix(name, "kubernetes.io/csi/"+DriverName+"^id-")
	return strings.TrimPrefix(strings.TrimPrefix(name, s.SpaceOf(name)), "-")
}

// Left reports attachments and volumes that still exist.
func (s Side) Left(ctx context.Context) string {
	attachments, err := s.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil || len(attachments.Items) > 0 {
		return fmt.Sprintf("attachments are left: %v %v", attachments, err)
	}
	volumes, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil || len(volumes.Items) > 0 {
		return fmt.Sprintf("volumes are left: %v %v", volumes, err)
	}
	return ""
}

// SnapshotClass is a VolumeSnapshotClass.
type SnapshotClass struct {
	Name, Driver, Policy string
	IsDefault            bool
	Parameters           map[string]any
}

// MakeClass makes a VolumeSnapshotClass.
func (s Side) MakeClass(ctx context.Context, c SnapshotClass) error {
	o := upstream.Object("VolumeSnapshotClass", c.Name, nil)
	delete(o.Object, "spec")
	o.Object["driver"], o.Object["deletionPolicy"] = c.Driver, c.Policy
	if c.Parameters != nil {
		o.Object["parameters"] = c.Parameters
	}
	if c.IsDefault {
		o.SetAnnotations(map[string]string{volume.AnnDefaultSnapshotClass: "true"})
	}
	_, err := s.Dynamic.Resource(upstream.SnapshotClasses()).Create(ctx, o, metav1.CreateOptions{})
	return err
}

// BindClaim makes a volume, at the driver as well if it is the driver's, and gives it to a claim, as a binder and a
// provisioner would. The claim stays protected, because no controller for that runs here.
func (s Side) BindClaim(ctx context.Context, space, claim string, v *corev1.PersistentVolume) error {
	c, err := s.Client.CoreV1().PersistentVolumeClaims(space).Get(ctx, claim, metav1.GetOptions{})
	if err != nil || c.Spec.VolumeName != "" {
		return err
	}
	if v.Spec.CSI != nil && v.Spec.CSI.Driver == DriverName {
		if err := s.CreateAtDriver(ctx, v.Name); err != nil {
			return err
		}
	}
	if v.Spec.CSI != nil {
		v.Spec.CSI.VolumeHandle = "id-" + v.Name
	}
	v.Spec.ClaimRef = &corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: space, Name: claim, UID: c.UID,
	}
	if _, err := s.Client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
		return err
	}
	claims := s.Client.CoreV1().PersistentVolumeClaims(space)
	if _, err := claims.Patch(ctx, claim, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"volumeName":%q}}`, v.Name),
		metav1.PatchOptions{}); err != nil {
		return err
	}
	_, err = claims.Patch(ctx, claim, types.MergePatchType, []byte(`{"status":{"phase":"Bound"}}`),
		metav1.PatchOptions{}, "status")
	return err
}

// CreateAtDriver has the driver make a volume.
func (s Side) CreateAtDriver(ctx context.Context, name string) error {
	mode := csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil)
	_, err := s.Storage.Driver.CreateVolume(ctx,
		&csipb.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csipb.VolumeCapability{mode}})
	return err
}

// DeleteAtDriver deletes a snapshot or a volume at the driver.
func (s Side) DeleteAtDriver(ctx context.Context, snapshot, v string) error {
	if snapshot != "" {
		_, err := s.Storage.Driver.DeleteSnapshot(ctx, &csipb.DeleteSnapshotRequest{SnapshotId: snapshot})
		return err
	}
	_, err := s.Storage.Driver.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: v})
	return err
}

// UnprotectClaim removes the finalizer that the API server gives a claim.
func (s Side) UnprotectClaim(ctx context.Context, space, name string) error {
	return upstream.Unmet(func() error {
		claims := s.Client.CoreV1().PersistentVolumeClaims(space)
		c, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == volume.FinalizerClaimProtection })
		_, err = claims.Update(ctx, c, metav1.UpdateOptions{})
		return err
	})
}
