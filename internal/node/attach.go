package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// awaitAttach has a volume that is not attached yet looked at again, since the
// node is not told of an attach that fails: when it failed because there are
// too many, the driver is asked how many there may be.
func (a *Agent) awaitAttach(ctx context.Context, f *facts, before volume.Because) error {
	a.work.addAfter(volume.Key(f.Driver, f.Handle), a.LookEvery)
	if before.Reason != volume.ReasonWaitForAttach {
		return nil
	}
	va, err := a.Client.StorageV1().VolumeAttachments().Get(ctx, attach.NameOf(f.Driver, f.Handle, f.Node), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return fmt.Errorf("read attachment of volume %s: %w", f.Volume, err)
	}
	e := va.Status.AttachError
	if e == nil || codes.Code(ptr.Deref(e.ErrorCode, 0)) != codes.ResourceExhausted { //nolint:gosec // gRPC's codes are small
		return nil
	}
	a.node.Full(f.Driver)
	if a.node.Spec(f.Driver).NodeAllocatableUpdatePeriodSeconds == nil {
		return nil
	}
	return a.giveUp(ctx, f, decide.Full(f.Volume, f.Driver, f.Node, e.Message))
}

// giveUp ends the Pods that wait for a volume for which the node has no room, as
// a kubelet does, so that whoever made them can have others elsewhere. A Pod
// that has the volume, or had all of its own, may be running and is left alone.
func (a *Agent) giveUp(ctx context.Context, f *facts, b volume.Because) error {
	var failed []error
	for path, pod := range f.consumers {
		if c := uses.Mounted(pod); f.Record.Target(path) != nil || c != nil && c.Status == corev1.ConditionTrue {
			continue
		}
		body, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": pod.UID},
			"status": map[string]any{
				"phase": corev1.PodFailed, "reason": b.Reason, "message": b.Message, "conditions": []corev1.PodCondition{{
					Type: volume.ConditionVolumesMounted, Status: corev1.ConditionFalse, Reason: string(b.Reason), Message: b.Message, LastTransitionTime: metav1.Now(),
				}},
			},
		})
		if err != nil {
			return fmt.Errorf("give up pod %s: %w", cluster.Key(pod), err)
		}
		written, err := a.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			failed = append(failed, fmt.Errorf("give up pod %s: %w", cluster.Key(pod), err))
		default:
			a.pods.Wrote(written)
			a.Events.Warn(pod, b)
		}
	}
	return errors.Join(failed...)
}
