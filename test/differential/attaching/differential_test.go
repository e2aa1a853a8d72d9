package attaching

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

const (
	// needless is a driver that needs no attaching.
	needless = "needless.csi.example.com"
	// longPause is how long the sides may differ in attachments before that counts as a difference: after failures
	// Kubernetes' attach/detach controller doubles its pause each time, and no edit ends the pause.
	longPause = 2 * time.Minute
	// stuckFor is how long at the end attachments may need to go.
	stuckFor = 10 * time.Second
)

// TestAttachIsKubernetes plays the same sequences to volplane's attach/detach controller and attacher and
// to those of Kubernetes, each with a driver of its own. It compares all attachments, volumes and nodes,
// the calls of the drivers and their volumes. The sequences also do what kubelets do. Half of them have options.
func TestAttachIsKubernetes(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{"", "xfs"} {
		t.Run("default-fstype="+fsType, func(t *testing.T) { attachesAlike(t, fsType) })
	}
}

func attachesAlike(t *testing.T, fsType string) {
	t.Helper()
	ours, theirs := differential.NewSide(t, "volplane", attaching()), differential.NewSide(t, "kubernetes", attaching())
	ours.Sidecars.Attacher.DefaultFSType, theirs.Options = fsType, []string{"--default-fstype=" + fsType}
	for _, s := range []side{ours, theirs} {
		_, err := s.Client.StorageV1().CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: needless}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	drivers := ours.Storage.Start(t, manyNodes)
	theirs.Storage.Start(t, manyNodes)
	ours.StartController(func() func() { return ours.Ours(t, drivers, "attachdetach", "attacher") })
	theirs.StartController(func() func() { return theirAttachDetach(t, theirs) })
	theirs.StartController(func() func() { return theirAttacher(t, theirs, theirs.Storage.Driver) })
	differential.CompareAll(t, &differential.Differential{
		Sides: []side{ours, theirs}, Few: 5, Patience: longPause, Draw: drawAttaching,
		Allowed: func(ours, theirs []string) string {
			return differential.Explain(ours, theirs,
				attachRows())
		}, Counted: map[string]int{},
	})
}

// attaching compares what is attached to which node.
func attaching() topic {
	return topic{
		Pause: upstream.SyncPeriod, States: attachStates, Versions: attachVersions, Awake: awakeAttaching, Touch: touchNodes,
		Remove: detachAll, NeedsAttach: needsAttach,
	}
}

// awakeNode is the node whose volume shows that the controllers run.
const awakeNode = "awake"

// manyNodes configures a driver that knows the nodes of all sequences, under two ids each. The driver does not list
// attached volumes, because Kubernetes' attacher would list them at any time.
func manyNodes(c *csitest.Config) {
	c.Controller.ListVolumesPublishedNodes = false
	c.NodeID = "id-" + awakeNode
	for i := range differential.Batch {
		for n := range nodesOfOne {
			id := nodeID(fmt.Sprint("-s", i), nodeName(n))
			c.OtherNodes = append(c.OtherNodes, id, id+otherID)
		}
	}
}

// awakeAttaching waits until all controllers of a side have attached and detached a volume. After the
// driver has changed whether it needs attaching, Kubernetes may take minutes to notice a new Pod.
func awakeAttaching(ctx context.Context, s side, name string) error {
	if _, err := s.Client.StorageV1().CSIDrivers().Get(ctx, differential.DriverName,
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	if err := s.MakeNode(ctx, awakeNode, "id-"+awakeNode); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := s.Wire(ctx, "default", name, differential.CSIVolume(name, differential.DriverName,
		corev1.ReadWriteOnce)); err != nil {
		return err
	}
	if err := makePod(ctx, s, "default", name, awakeNode, name); err != nil {
		return err
	}
	err := upstream.Poll(ctx, func() (bool, error) {
		all, err := mayMount(ctx, s, awakeNode)
		return len(all) > 0, err
	})
	if err != nil {
		return fmt.Errorf("%s does not attach: %w", s.Name, err)
	}
	if err := endPod(ctx, s, "default", name); err != nil {
		return err
	}
	err = upstream.Poll(ctx, func() (bool, error) {
		all, err := s.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		return err == nil && !slices.ContainsFunc(all.Items, func(a storagev1.VolumeAttachment) bool {
			return a.Spec.NodeName == awakeNode
		}), err
	})
	if err != nil {
		return fmt.Errorf("%s does not detach: %w", s.Name, err)
	}
	return nil
}

// touchNodes edits the CSINodes of a sequence, which ends the pauses of volplane's attacher; its Nodes, as kubelets do
// all the time: after a restart, Kubernetes considers a volume mounted until its node changes; and its Pods: Kubernetes
// reconciles those of a driver that has started to need attaching only every three minutes.
func touchNodes(ctx context.Context, s side, space string, mark int) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, mark)
	for n := range nodesOfOne {
		name := space + "-" + nodeName(n)
		_, err := s.Client.StorageV1().CSINodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !upstream.Refused(err) {
			return err
		}
		_, err = s.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !upstream.Refused(err) {
			return err
		}
	}
	pods, err := s.Client.CoreV1().Pods(space).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		_, err := s.Client.CoreV1().Pods(space).Patch(ctx, pods.Items[i].Name, types.MergePatchType, patch,
			metav1.PatchOptions{})
		if err != nil && !upstream.Refused(err) {
			return err
		}
	}
	return nil
}

// needsAttach sets whether the driver needs attaching. The field is immutable, but the object can be recreated.
func needsAttach(ctx context.Context, s side, required bool) error {
	if required {
		if err := noteLeftBehind(ctx, s); err != nil {
			return err
		}
	}
	drivers := s.Client.StorageV1().CSIDrivers()
	if err := drivers.Delete(ctx, differential.DriverName, metav1.DeleteOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return err
	}
	_, err := drivers.Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: differential.DriverName},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &required},
	}, metav1.CreateOptions{})
	return err
}

// detachAll removes all attachments, and the nodes, which only attachments need.
func detachAll(ctx context.Context, s side) error {
	attachments := s.Client.StorageV1().VolumeAttachments()
	if err := s.Client.StorageV1().CSIDrivers().Delete(ctx, differential.DriverName, metav1.DeleteOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return err
	}
	nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		if err := uses(ctx, s, nodes.Items[i].Name); err != nil {
			return err
		}
	}
	if err := attachments.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	if err := allDetached(ctx, s); err != nil {
		return err
	}
	if err := s.Client.StorageV1().CSINodes().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return err
	}
	return s.Client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// allDetached waits until no attachment is left. Those that no controller releases are
// released by force after a while.
func allDetached(ctx context.Context, s side) error {
	attachments, giveUp := s.Client.StorageV1().VolumeAttachments(), time.Now().Add(stuckFor)
	return upstream.Poll(ctx, func() (bool, error) {
		all, err := attachments.List(ctx, metav1.ListOptions{})
		if err != nil || len(all.Items) == 0 || time.Now().Before(giveUp) {
			return err == nil && len(all.Items) == 0, err
		}
		for i := range all.Items {
			_, err := attachments.Patch(ctx, all.Items[i].Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
				metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return false, err
			}
		}
		return false, attachments.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
}
