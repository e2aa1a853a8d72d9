package volumes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/mount/fsgroup"
	"volplane.dev/volplane/internal/node/uses"
)

// lookPause is the pause between two looks for a mount that a driver has promised.
const lookPause = 50 * time.Millisecond

var (
	errNotMounted = errors.New("the driver reported that the volume is mounted, but it is not in the mount table")
	errNoDevice   = errors.New("the driver reported that the volume is published, but there is no block device")
)

func (d *applier) publish(ctx context.Context, path string) error {
	request, err := d.request(ctx, path)
	if err != nil {
		return err
	}
	// A driver could write to another program's mount there, or hide it.
	if d.rec.Target(path) == nil {
		if err := d.table.CheckFree(path, d.f.Block); err != nil {
			return fmt.Errorf("target of volume %s: %w", uses.VolumeAt(path), err)
		}
	}
	t, before := d.target(d.consumer(path))
	t.Phase = decide.Publishing
	if err := d.save(); err != nil {
		d.restorePhase(path, before)
		return err
	}
	if err := mount.MakeBelow(d.Root, filepath.Dir(path)); err != nil {
		// The driver was not called.
		d.restorePhase(path, before)
		d.dirty = true
		return fmt.Errorf("create parent of target: %w", err)
	}
	_, err = d.f.driver.NodeClient().NodePublishVolume(ctx, request)
	d.dirty = true
	phase := d.phaseAfterCall(decide.Publish, before, path, err)
	switch {
	case err == nil:
		return d.confirmPublished(ctx, t)
	case phase == "":
		d.removeTarget(path)
	default:
		t.Phase = phase
	}
	return wrapCall(d.f.Driver, "NodePublishVolume", err)
}

// republish calls the driver again for a published target. The mount stays as it is even if the call
// fails.
func (d *applier) republish(ctx context.Context, path string) error {
	d.publishContext = d.rec.PublishContext
	request, err := d.request(ctx, path)
	if err != nil {
		return err
	}
	if _, err := d.f.driver.NodeClient().NodePublishVolume(ctx, request); err != nil {
		return wrapCall(d.f.Driver, "NodePublishVolume", err)
	}
	return d.confirmPublished(ctx, d.rec.Target(path))
}

// request returns the arguments of NodePublishVolume.
func (d *applier) request(ctx context.Context, path string) (*csipb.NodePublishVolumeRequest, error) {
	c := d.f.consumers[path]
	r, capability, err := d.prepare(c.pv)
	if err != nil {
		return nil, err
	}
	secrets, err := d.secrets(ctx, c.pv.Name, c.pv.Spec.CSI.NodePublishSecretRef)
	if err != nil {
		return nil, err
	}
	if m := capability.GetMount(); m != nil {
		m.VolumeMountGroup = d.f.mountGroup(c.pod)
	}
	request := &csipb.NodePublishVolumeRequest{
		VolumeId: r.Handle, PublishContext: r.PublishContext, TargetPath: path, VolumeCapability: capability,
		Readonly: d.consumer(path).ReadOnly, Secrets: secrets, VolumeContext: d.volumeContext(c),
	}
	if r.Stage != "" {
		request.StagingTargetPath = r.StagingPath
	}
	return request, d.addTokens(ctx, c.pod, request)
}

// confirmPublished checks the driver's success on the host, does the agent's part (group of the files, link of a
// device), and sets the phase.
func (d *applier) confirmPublished(ctx context.Context, t *decide.Target) error {
	if d.f.Verify {
		if err := d.awaitMounted(ctx, t.Path); err != nil {
			return err
		}
	}
	if group, always, ok := d.f.fsGroup(d.Node.Spec(d.f.Driver).FSGroupPolicy, d.f.consumers[t.Path], t.ReadOnly); ok {
		if err := d.setGroup(ctx, t.Path, group, always); err != nil {
			return err
		}
	}
	if d.f.Block {
		if err := d.link(t); err != nil {
			return err
		}
	}
	points, err := d.table.LookBelow(t.Path)
	if err != nil {
		return err
	}
	if t.Mounts = len(points); t.Mounts == 1 {
		t.Mounts = 0
	}
	t.Filesystem = ""
	if len(points) > 0 && points[0].Path == t.Path {
		t.Filesystem = points[0].Filesystem()
	}
	t.Phase = decide.Published
	d.republishes.done(d.f.Driver, t.Path)
	return nil
}

// setGroup gives the files of a volume to a Pod's group. Like a kubelet, it skips those that cannot be changed, which
// would otherwise block the Pod forever.
func (d *applier) setGroup(ctx context.Context, path string, group int, always bool) error {
	err := fsgroup.Apply(ctx, path, group, always)
	var left *fsgroup.Incomplete
	if !errors.As(err, &left) {
		return err
	}
	name := uses.VolumeAt(path)
	d.Log.Warn("not all files of the volume have the Pod's group", "volume", name, "err", err)
	d.Events.Warn(d.f.consumers[path].pod, decide.GroupIncomplete(name, d.f.Node, group, left.Count, left.First.Error()))
	return nil
}

// awaitMounted checks that a driver has mounted a volume. Some drivers answer as soon as their FUSE program has been
// started: what a Pod wrote then would be lost, and a second call would mount a second time.
func (d *applier) awaitMounted(ctx context.Context, path string) error {
	err := d.checkMounted(path)
	if !errors.Is(err, errNotMounted) {
		return err
	}
	began, limit := time.Now(), cmp.Or(d.LateMount, 5*time.Second)
	for errors.Is(err, errNotMounted) && time.Since(began) < limit {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lookPause):
			err = d.checkMounted(path)
		}
	}
	if err == nil {
		d.Log.Warn("the driver reported that the volume is mounted before it was", "driver", d.f.Driver, "volume",
			uses.VolumeAt(path), "path", path, "late", time.Since(began))
	}
	return err
}

func (d *applier) checkMounted(path string) error {
	if d.f.Block {
		if !mount.IsDevice(path) {
			return fmt.Errorf("volume %s at %s: %w", uses.VolumeAt(path), path, errNoDevice)
		}
		return nil
	}
	_, mounted, err := d.table.Look(path)
	if err == nil && !mounted {
		err = fmt.Errorf("volume %s at %s: %w", uses.VolumeAt(path), path, errNotMounted)
	}
	return err
}

// link makes the block device visible in the Pod's directory.
func (d *applier) link(t *decide.Target) error {
	at := uses.DeviceLink(d.Root, t.PodUID, uses.VolumeAt(t.Path))
	if err := mount.MakeBelow(d.Root, filepath.Dir(at)); err != nil {
		return fmt.Errorf("create parent of device link: %w", err)
	}
	return mount.Link(t.Path, at)
}

func (d *applier) consumer(path string) decide.Consumer {
	for _, c := range d.f.Wanted {
		if c.Path == path {
			return c
		}
	}
	return decide.Consumer{Path: path}
}

// target returns the record's target for a consumer, which it adds if needed, and the phase to which a
// failed call falls back: Publishing for an existing target, because an earlier call may have had an
// effect.
func (d *applier) target(c decide.Consumer) (*decide.Target, decide.Phase) {
	if t := d.rec.Target(c.Path); t != nil {
		return t, decide.Publishing
	}
	d.rec.Targets = append(d.rec.Targets, decide.Target{
		PodUID: c.UID, PodNamespace: c.Namespace, PodName: c.Name, Path: c.Path, ReadOnly: c.ReadOnly,
	})
	return &d.rec.Targets[len(d.rec.Targets)-1], ""
}

// restorePhase restores a target's previous phase; a target without one is removed.
func (d *applier) restorePhase(path string, before decide.Phase) {
	if before == "" {
		d.rec.Targets = slices.DeleteFunc(d.rec.Targets, func(t decide.Target) bool { return t.Path == path })
		return
	}
	d.rec.Target(path).Phase = before
}

// removeTarget removes a target from the record, and its empty directories.
func (d *applier) removeTarget(path string) {
	d.rec.Targets, d.dirty = slices.DeleteFunc(d.rec.Targets, func(t decide.Target) bool { return t.Path == path }), true
	d.republishes.forget(path)
	d.removeEmptyTarget(path)
}

// unlink removes the link to the device from the Pod's directory.
func (d *applier) unlink(t *decide.Target) error {
	at := uses.DeviceLink(d.Root, t.PodUID, uses.VolumeAt(t.Path))
	if err := mount.Unlink(at); err != nil {
		return err
	}
	d.removeEmptyTarget(filepath.Dir(at))
	return nil
}

func (d *applier) unpublish(ctx context.Context, path string) error {
	t := d.rec.Target(path)
	t.Phase = decide.Unpublishing
	if err := d.settle(); err != nil {
		return err
	}
	if d.rec.Block {
		if err := d.unlink(t); err != nil {
			return err
		}
	}
	_, err := d.f.driver.NodeClient().NodeUnpublishVolume(ctx,
		&csipb.NodeUnpublishVolumeRequest{VolumeId: d.rec.Handle, TargetPath: path})
	if err := d.verifyRemoved(path, wrapCall(d.f.Driver, "NodeUnpublishVolume", err)); err != nil {
		return err
	}
	d.removeTarget(path)
	return nil
}

// Keys of a Pod's attributes in the volume context.
const (
	infoPrefix = "csi.storage.k8s.io/"
	tokensKey  = infoPrefix + "serviceAccount.tokens"
)

// volumeContext returns the attributes of a Pod's volume, with those of the Pod if the driver requires them.
func (d *applier) volumeContext(c consumer) map[string]string {
	out, pod := map[string]string{}, c.pod
	maps.Copy(out, c.pv.Spec.CSI.VolumeAttributes)
	if info := d.Node.Spec(d.f.Driver).PodInfoOnMount; info == nil || !*info || pod == nil {
		return out
	}
	out[infoPrefix+"pod.name"], out[infoPrefix+"pod.namespace"], out[infoPrefix+"pod.uid"] = pod.Name, pod.Namespace,
		string(pod.UID)
	out[infoPrefix+"serviceAccount.name"], out[infoPrefix+"ephemeral"] = pod.Spec.ServiceAccountName,
		strconv.FormatBool(d.f.Ephemeral)
	return out
}

// addTokens adds the tokens of the Pod's service account that the driver requires, by audience, to the request's volume
// context or secrets. Tokens are never written to the journal or a log.
func (d *applier) addTokens(ctx context.Context, pod *corev1.Pod, request *csipb.NodePublishVolumeRequest) error {
	spec := d.Node.Spec(d.f.Driver)
	if len(spec.TokenRequests) == 0 || pod == nil {
		return nil
	}
	tokens := map[string]authenticationv1.TokenRequestStatus{}
	for _, r := range spec.TokenRequests {
		t, err := d.tokens.get(ctx, d.Client, pod, r)
		if err != nil {
			return err
		}
		tokens[r.Audience] = t
	}
	text, err := json.Marshal(tokens)
	if err != nil {
		return fmt.Errorf("tokens of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if ptr.Deref(spec.ServiceAccountTokenInSecrets, false) {
		if request.Secrets == nil {
			request.Secrets = map[string]string{}
		}
		request.Secrets[tokensKey] = string(text)
		return nil
	}
	request.VolumeContext[tokensKey] = string(text)
	return nil
}

// mountGroup returns the VolumeMountGroup for a driver's call, "" if the driver does not support it or
// the Pod has no group. A volume is staged for all its Pods, with the group of the first one; pod is
// nil then.
func (f *facts) mountGroup(pod *corev1.Pod) string {
	together := func(c decide.Consumer) bool { return c.Apart == "" }
	if first := slices.IndexFunc(f.Wanted, together); pod == nil && first >= 0 {
		pod = f.consumers[f.Wanted[first].Path].pod
	}
	if !f.driver.Node.MountGroup || groupOf(pod) == nil {
		return ""
	}
	return strconv.FormatInt(*groupOf(pod), 10)
}

func groupOf(pod *corev1.Pod) *int64 {
	if pod == nil || pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// fsGroup says whether the agent has to change the group of the files to the Pod's, and whether it does
// so even if the top directory already has that group.
func (f *facts) fsGroup(policy *storagev1.FSGroupPolicy, c consumer, readOnly bool) (group int, always, ok bool) {
	g := groupOf(c.pod)
	if g == nil || readOnly || f.Block || f.driver.Node.MountGroup {
		return 0, false, false
	}
	switch ptr.Deref(policy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy) {
	case storagev1.FileFSGroupPolicy:
		ok = true
	case storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy:
		ok = c.pv.Spec.CSI.FSType != "" && slices.ContainsFunc(c.pv.Spec.AccessModes, oneWriter)
	}
	change := c.pod.Spec.SecurityContext.FSGroupChangePolicy
	return int(*g), change == nil || *change == corev1.FSGroupChangeAlways, ok
}

// oneWriter says whether a mode is for writers on one node.
func oneWriter(mode corev1.PersistentVolumeAccessMode) bool {
	return mode == corev1.ReadWriteOnce || mode == corev1.ReadWriteOncePod
}
