package attaching

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// changeCSINode changes a CSINode as when drivers register and unregister.
func (d *attachDice) changeCSINode(node string) op {
	switch d.IntN(4) {
	case 0:
		return op{Text: "let the driver go from " + node, Do: func(ctx context.Context, s side, space string) error {
			_, err := s.Client.StorageV1().CSINodes().Patch(ctx, space+"-"+node, types.MergePatchType,
				[]byte(`{"spec":{"drivers":[]}}`), metav1.PatchOptions{})
			return err
		}}
	case 1:
		return op{Text: "delete the CSINode of " + node, Do: func(ctx context.Context, s side, space string) error {
			return s.Client.StorageV1().CSINodes().Delete(ctx, space+"-"+node, metav1.DeleteOptions{})
		}}
	}
	return registerDriver(node, differential.Pick(d, "", otherID), differential.Pick[int32](d, 0, 0, 1, 2))
}

// registerDriver registers the driver on a node, or registers it again, with an id that has this suffix and an attach
// limit.
func registerDriver(node, end string, limit int32) op {
	return op{
		Text: fmt.Sprintf("let the driver come to %s, as %q, for so many volumes (0 is all): %d", node, end, limit),
		Do: func(ctx context.Context, s side, space string) error {
			if err := s.Client.StorageV1().CSINodes().Delete(ctx, space+"-"+node, metav1.DeleteOptions{}); err != nil &&
				!upstream.Refused(err) {
				return err
			}
			return s.MakeCSINode(ctx, space+"-"+node, nodeID(space, node)+end, limit)
		},
	}
}

func attachByHand(v, node string, ofItsOwn bool) op {
	text := "attach volume " + v + " to " + node + " by hand"
	if ofItsOwn {
		text += ", by the name that it has"
	}
	return op{Text: text, Do: func(ctx context.Context, s side, space string) error {
		_, err := s.Client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{
				Name: handName(space, v, node, ofItsOwn), Annotations: map[string]string{annByHand: "yes"},
			}, Spec: storagev1.VolumeAttachmentSpec{
				Attacher: differential.DriverName, NodeName: space + "-" + node,
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(space + "-" + v)},
			},
		}, metav1.CreateOptions{})
		return err
	}}
}

// handName is the name of an attachment that a user creates: the one that volplane and
// Kubernetes would give it, or one of its own.
func handName(space, v, node string, theirs bool) string {
	if theirs {
		return attach.NameOf(differential.DriverName, "id-"+space+"-"+v, space+"-"+node)
	}
	return space + "-" + v + "-" + node
}

func detachByHand(v, node string, theirs bool) op {
	text := "detach volume " + v + " from " + node + " by hand"
	if !theirs {
		text += ", attached already"
	}
	return op{Text: text, Do: func(ctx context.Context, s side, space string) error {
		return s.Client.StorageV1().VolumeAttachments().Delete(ctx, handName(space, v, node, theirs), metav1.DeleteOptions{})
	}}
}

// takenAway begins the line of an attachment that was deleted without a detach.
const takenAway = "deleted without a detach: "

// forceDetach removes an attachment without its attacher, which may protect it again before it is deleted: then it is
// repeated.
func forceDetach(v, node string) op {
	return op{
		Text: "delete the attachment of volume " + v + " to " + node + " with all its finalizers",
		Do: func(ctx context.Context, s side, space string) error {
			name, all := handName(space, v, node, true), s.Client.StorageV1().VolumeAttachments()
			defer s.Memory.Keep(space, takenAway+v+" on "+node)
			return upstream.Unmet(func() error {
				bare, err := all.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
					metav1.PatchOptions{})
				if err != nil {
					return err
				}
				return all.Delete(ctx, name, metav1.DeleteOptions{
					Preconditions: &metav1.Preconditions{ResourceVersion: &bare.ResourceVersion},
				})
			})
		},
	}
}

// replaceNode deletes a Node and recreates it before any program can do much.
func replaceNode(node string) op {
	return op{Text: "delete " + node + " and recreate it", Do: func(ctx context.Context, s side, space string) error {
		name := space + "-" + node
		before, err := s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := s.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		recreated := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{annAnew: "yes", volume.AnnControllerManagedAttach: "true"},
		}}
		if _, err := s.Client.CoreV1().Nodes().Create(ctx, recreated, metav1.CreateOptions{}); err != nil {
			return err
		}
		return s.NodeStatus(ctx, name, map[string]any{
			"conditions":   []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			"volumesInUse": before.Status.VolumesInUse,
		})
	}}
}

const (
	// annAnew marks objects that were recreated.
	annAnew = "example.com/anew"
	// annByHand marks attachments that a user has created.
	annByHand = "example.com/by-hand"
)

// replaceVolume deletes a volume object, whatever keeps it, and recreates it.
func replaceVolume(v string) op {
	return op{
		Text: "delete volume " + v + " with all its finalizers and recreate it",
		Do: func(ctx context.Context, s side, space string) error {
			before, err := s.Client.CoreV1().PersistentVolumes().Get(ctx, space+"-"+v, metav1.GetOptions{})
			if err != nil {
				return err
			}
			// A controller may have removed the object before its finalizers are removed here.
			if err := differential.LoseVolume(v).Do(ctx, s, space); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			return makeToStay(ctx, s, &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: before.Name, Annotations: map[string]string{annAnew: "yes"}}, Spec: before.Spec,
			})
		},
	}
}

// makeToStay makes a volume object whose predecessor of the same name has just lost its finalizers. When a controller
// removes the last finalizer at that moment, the API server deletes, in a second step, the object that has the name
// then, which may be the new one: the test waits until the side is at rest, and recreates the object if it is gone.
func makeToStay(ctx context.Context, s side, v *corev1.PersistentVolume) error {
	volumes := s.Client.CoreV1().PersistentVolumes()
	for {
		if _, err := volumes.Create(ctx, v, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := s.Unprotect(ctx, v.Name); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err := s.Rest(ctx); err != nil {
			return err
		}
		if _, err := volumes.Get(ctx, v.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
	}
}

// movePod deletes a Pod and recreates it on a node, as a controller of Pods with fixed names would.
func movePod(name, node string) op {
	return op{Text: "move pod " + name + " to " + node, Do: func(ctx context.Context, s side, space string) error {
		before, err := s.Client.CoreV1().Pods(space).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := endPod(ctx, s, space, name); err != nil {
			return err
		}
		var claims []string
		for _, v := range before.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				claims = append(claims, v.PersistentVolumeClaim.ClaimName)
			}
		}
		return makeAnew(ctx, s, space, name, space+"-"+node, claims...)
	}}
}
