package docker

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/references"
	"volplane.dev/volplane/internal/door"
	"volplane.dev/volplane/internal/volume"
)

// undoLimit is how long a mount that has failed may take to say so.
const undoLimit = 5 * time.Second

// mount counts a container and waits until the volume is mounted.
func (d *Door) mount(ctx context.Context, r request) (answer, error) {
	claim, err := d.usable(r.Name)
	if err != nil {
		return answer{}, err
	}
	pod := door.Pod(metav1.ObjectMeta{Name: podName(claim.Name, d.Node)}, claim.Name, d.Node)
	pod, err = d.users.Take(ctx, pod, r.ID)
	if err != nil {
		return answer{}, fmt.Errorf("volume %s is not mounted: %w", r.Name, err)
	}
	path, err := d.users.Await(ctx, pod)
	if err == nil && claim.Labels[volume.LabelMadeBy] == managedBy {
		err = d.emptied(ctx, path)
	}
	if err == nil {
		return answer{Mountpoint: path}, nil
	}
	err = d.users.Explained(context.WithoutCancel(ctx), pod, err)
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	if back := d.users.Fail(undo, pod, r.ID); back != nil {
		d.log.Warn("docker: a failed mount stays counted until nothing has it mounted", "volume", r.Name, "err", back)
	}
	return answer{}, fmt.Errorf("volume %s is not mounted: %w", r.Name, err)
}

// unmount takes a container from the users of a volume. It does not need the claim, which may have been deleted.
func (d *Door) unmount(ctx context.Context, r request) (answer, error) {
	key := types.NamespacedName{Namespace: d.Namespace, Name: podName(claimName(r.Name), d.Node)}.String()
	pod, exists := d.pods.Get(key)
	if !exists || pod.DeletionTimestamp != nil {
		return answer{}, nil
	}
	err := d.users.Settle(ctx, pod, d.users.Survey(), func(refs references.References) references.References {
		return refs.Release(r.ID, d.users.Kernel.Now())
	})
	if err != nil {
		return answer{}, fmt.Errorf("volume %s stays mounted: %w", r.Name, err)
	}
	return answer{}, nil
}
