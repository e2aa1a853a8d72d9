package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/mount"
)

var errNotGrown = errors.New("the driver reported that it expanded the volume, but not to the requested size")

// grow expands the volume on the node, where a Pod has it, and then writes the new size to the Pod's claim.
func (d *applier) grow(ctx context.Context, path string) error {
	r, c, size := d.rec, d.f.consumers[path], d.consumer(path).Expand
	var has int64
	var failed error
	if d.f.driver.Node.Expand {
		has, failed = d.expand(ctx, path, c.pv, size)
	}
	after := resize.AfterNode(resize.Answer{Answer: csi.AnswerOf(failed), Bytes: has}, size)
	if after.Short != "" {
		failed = fmt.Errorf("%w: %s", errNotGrown, after.Short)
	}
	if after.Refused {
		r.ExpandRefused, d.dirty = max(r.ExpandRefused, size), true
	}
	if after.State != nil {
		if err := d.writeSize(ctx, c, *after.State); err != nil {
			return err
		}
	}
	if failed != nil {
		return failed
	}
	if c.pv.Name == r.Volume {
		r.Short, d.dirty = false, true
	}
	d.Events.Note(c.claim, decide.Expanded(c.pv.Name, d.f.Node))
	return nil
}

// expand returns the size that the driver says the volume has; 0 is that it does not say.
func (d *applier) expand(ctx context.Context, path string, pv *corev1.PersistentVolume, size int64) (int64, error) {
	d.publishContext = d.rec.PublishContext
	_, capability, err := d.prepare(pv)
	if err != nil {
		return 0, err
	}
	secrets, err := d.secrets(ctx, pv.Name, pv.Spec.CSI.NodeExpandSecretRef)
	if err != nil {
		return 0, err
	}
	if secrets != nil {
		// Its errors may contain the secret even after a restart of the agent; the record is needed to
		// redact them.
		if err := d.save(); err != nil {
			return 0, err
		}
	}
	request := &csipb.NodeExpandVolumeRequest{
		VolumeId: d.rec.Handle, VolumePath: path, Secrets: secrets,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: size}, VolumeCapability: capability,
	}
	if d.rec.Stage == decide.Staged {
		request.StagingTargetPath = d.rec.StagingPath
	}
	got, err := d.f.driver.NodeClient().NodeExpandVolume(ctx, request)
	return got.GetCapacityBytes(), wrapCall(d.f.Driver, "NodeExpandVolume", err)
}

// writeSize writes the result of an expansion into the claim's status: the new capacity, or that the
// driver refuses it.
func (d *applier) writeSize(ctx context.Context, c consumer, state corev1.ClaimResourceStatus) error {
	claim := c.claim
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": claim.ResourceVersion},
		"status":   resize.NodeStatus(claim, state, c.pv.Spec.Capacity[corev1.ResourceStorage]),
	})
	if err != nil {
		return fmt.Errorf("write size of claim %s: %w", claim.Name, err)
	}
	written, err := d.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType,
		body, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write size of claim %s: %w", claim.Name, err)
	}
	d.Claims.Wrote(written)
	return nil
}

// isShort says whether a volume that was staged has the filesystem of a smaller one: of its source snapshot or volume.
// Drivers copy that with the data, and CSI does not say who grows it. Only filesystems on devices of this host are
// measured: others may not respond.
func isShort(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, at mount.Point) bool {
	if claim == nil || claim.Spec.DataSourceRef == nil && claim.Spec.DataSource == nil ||
		!strings.HasPrefix(at.Source, "/dev/") || at.Type == "devtmpfs" {
		return false
	}
	filesystem, device, err := mount.Size(at)
	return err == nil && leavesRoom(filesystem, device, pv.Spec.Capacity.Storage().Value())
}

// unused is how many bytes at the end of a device the tools of ext4 and xfs may leave, because they are too few for
// another group of blocks.
const unused = 16 << 20

// leavesRoom says whether a filesystem is smaller than its device, or than the volume: a driver may have put it into a
// part of the device. Up to an eighth may be overhead of the filesystem or the driver. The size of the device is 0 if
// it cannot be compared.
func leavesRoom(filesystem, device, volume int64) bool {
	eighth := filesystem / 8
	return filesystem+eighth < volume || filesystem+min(eighth, unused) < device
}
