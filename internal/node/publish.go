package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/fsgroup"
	"volplane.dev/volplane/internal/volume"
)

var errNotMounted = errors.New("the driver said that the volume is mounted, but it is not in the mount table")

func (d *deed) publish(ctx context.Context, path string) error {
	r, capability, err := d.prepare()
	if err != nil {
		return err
	}
	pod, consumer := d.f.consumers[path], d.consumer(path)
	secrets, err := d.secrets(ctx, r.PublishSecret)
	if err != nil {
		return err
	}
	t, before := d.target(consumer)
	t.Phase = decide.Publishing
	if err := d.save(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("make parent of target: %w", err)
	}
	if m := capability.GetMount(); m != nil {
		m.VolumeMountGroup = d.mountGroup(pod)
	}
	request := &csipb.NodePublishVolumeRequest{
		VolumeId: r.Handle, PublishContext: r.PublishContext, TargetPath: path, VolumeCapability: capability,
		Readonly: t.ReadOnly, Secrets: secrets, VolumeContext: d.volumeContext(pod),
	}
	if r.Stage != "" {
		request.StagingTargetPath = r.StagingPath
	}
	_, err = d.f.driver.NodeClient().NodePublishVolume(ctx, request)
	d.dirty = true
	switch csi.OutcomeOfNodeCall(err) {
	case volume.Done:
		return d.published(ctx, t, pod)
	case volume.Failed:
		if before == "" {
			d.forget(path)
		} else {
			t.Phase = before
		}
	}
	return called(d.f.Driver, "NodePublishVolume", err)
}

// published believes the driver when the mount table agrees.
func (d *deed) published(ctx context.Context, t *decide.Target, pod *corev1.Pod) error {
	if d.f.Verify && !d.f.Block {
		if _, mounted, err := mount.At(t.Path); err != nil {
			return err
		} else if !mounted {
			return fmt.Errorf("volume %s at %s: %w", d.f.Volume, t.Path, errNotMounted)
		}
	}
	if group, always, ok := d.ownGroup(pod, t.ReadOnly); ok {
		if err := fsgroup.Apply(ctx, t.Path, group, always); err != nil {
			return err
		}
	}
	t.Phase = decide.Published
	return nil
}

func (d *deed) consumer(path string) decide.Consumer {
	for _, c := range d.f.Wanted {
		if c.Path == path {
			return c
		}
	}
	return decide.Consumer{Path: path}
}

// target returns the record's target for a consumer, and its phase so far. A
// published one that is published again is no longer known to be without
// effect.
func (d *deed) target(c decide.Consumer) (*decide.Target, decide.Phase) {
	if t := d.rec.Target(c.Path); t != nil {
		return t, decide.Publishing
	}
	d.rec.Targets = append(d.rec.Targets, decide.Target{PodUID: c.UID, PodNamespace: c.Namespace, PodName: c.Name, Path: c.Path, ReadOnly: c.ReadOnly})
	return &d.rec.Targets[len(d.rec.Targets)-1], ""
}

// forget takes a target out of the record.
func (d *deed) forget(path string) {
	kept := d.rec.Targets[:0]
	for _, t := range d.rec.Targets {
		if t.Path != path {
			kept = append(kept, t)
		}
	}
	d.rec.Targets, d.dirty = kept, true
	d.a.tidyTarget(path)
}

func (a *Agent) tidyTarget(path string) {
	paths := []string{path}
	for dir := filepath.Dir(path); strings.HasPrefix(dir, filepath.Join(a.RootDir, "pods")+"/") ||
		strings.HasPrefix(dir, filepath.Join(a.RootDir, csiDir, "volumeDevices/publish")+"/"); dir = filepath.Dir(dir) {
		paths = append(paths, dir)
	}
	a.tidy(paths...)
}

func (d *deed) unpublish(ctx context.Context, path string) error {
	t := d.rec.Target(path)
	t.Phase = decide.Unpublishing
	if err := d.save(); err != nil {
		return err
	}
	_, err := d.f.driver.NodeClient().NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: d.rec.Handle, TargetPath: path})
	if err := d.taken(path, called(d.f.Driver, "NodeUnpublishVolume", err)); err != nil {
		return err
	}
	d.forget(path)
	return nil
}

// volumeContext is the volume's attributes, with the Pod's when the driver
// asks for them.
func (d *deed) volumeContext(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for k, v := range d.f.pv.Spec.CSI.VolumeAttributes {
		out[k] = v
	}
	if info := d.a.driverSpec(d.f.Driver).PodInfoOnMount; info == nil || !*info || pod == nil {
		return out
	}
	const prefix = "csi.storage.k8s.io/"
	out[prefix+"pod.name"], out[prefix+"pod.namespace"], out[prefix+"pod.uid"] = pod.Name, pod.Namespace, string(pod.UID)
	out[prefix+"serviceAccount.name"], out[prefix+"ephemeral"] = pod.Spec.ServiceAccountName, "false"
	return out
}

// mountGroup returns the group that the driver itself gives the files to, ""
// when it cannot or nobody asks. Staging is for all Pods; the first in order
// decides.
func (d *deed) mountGroup(pod *corev1.Pod) string {
	if pod == nil && len(d.f.Wanted) > 0 {
		pod = d.f.consumers[d.f.Wanted[0].Path]
	}
	if !d.f.driver.Node.MountGroup || groupOf(pod) == nil {
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

// ownGroup says whether the agent has to give the files to the Pod's group,
// and whether it does so even when the top directory has that group already.
func (d *deed) ownGroup(pod *corev1.Pod, readOnly bool) (group int, always, ok bool) {
	g := groupOf(pod)
	if g == nil || readOnly || d.f.Block || d.f.driver.Node.MountGroup {
		return 0, false, false
	}
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if p := d.a.driverSpec(d.f.Driver).FSGroupPolicy; p != nil {
		policy = *p
	}
	switch policy {
	case storagev1.FileFSGroupPolicy:
		ok = true
	case storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy:
		mode := corev1.PersistentVolumeAccessMode(d.rec.AccessMode)
		ok = d.rec.FSType != "" && (mode == corev1.ReadWriteOnce || mode == corev1.ReadWriteOncePod)
	}
	change := pod.Spec.SecurityContext.FSGroupChangePolicy
	return int(*g), change == nil || *change == corev1.FSGroupChangeAlways, ok
}

// bind shows the target at the host path that the Pod asks for.
func (d *deed) bind(path string) error {
	t, host := d.rec.Target(path), d.consumer(path).HostPath
	if t == nil {
		return fmt.Errorf("%w: there is no target %s", errHostPath, path)
	}
	if err := d.bindable(host); err != nil {
		return err
	}
	before := t.HostPhase
	t.HostPath, t.HostPhase = host, decide.Binding
	if err := d.save(); err != nil {
		return err
	}
	d.dirty = true
	if err := mount.Bind(path, host, t.ReadOnly); err != nil {
		if before == "" && !d.showsTarget(t) {
			t.HostPath, t.HostPhase = "", ""
		}
		return fmt.Errorf("%w: %w", errHostPath, err)
	}
	t.HostPhase = decide.Bound
	return nil
}

// bindable refuses what is no directory before anything is written.
func (d *deed) bindable(host string) error {
	if d.f.Block {
		return fmt.Errorf("%w: volume %s is a block device", errHostPath, d.f.Volume)
	}
	info, err := os.Lstat(host)
	switch {
	case err != nil:
		return fmt.Errorf("%w: make the directory first: %w", errHostPath, err)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory", errHostPath, host)
	}
	return nil
}

// unbind takes the second mount away, if it is the one that bind made.
func (d *deed) unbind(path string) error {
	t := d.rec.Target(path)
	t.HostPhase = decide.Unbinding
	if err := d.save(); err != nil {
		return err
	}
	if d.showsTarget(t) {
		if err := mount.Unmount(t.HostPath); err != nil {
			return err
		}
	} else if _, mounted, err := mount.At(t.HostPath); err != nil {
		return err
	} else if mounted {
		d.a.Log.Warn("mount at a host path stays, it shows something else", "volume", d.f.Volume, "path", t.HostPath)
	}
	t.HostPath, t.HostPhase, d.dirty = "", "", true
	return nil
}

// showsTarget says whether the mount at the target's host path is of the
// volume's filesystem.
func (d *deed) showsTarget(t *decide.Target) bool {
	host, mounted, err := mount.At(t.HostPath)
	if err != nil || !mounted {
		return false
	}
	for _, path := range []string{t.Path, d.rec.StagingPath} {
		if own, ok, err := mount.At(path); err == nil && ok && own.Device == host.Device {
			return true
		}
	}
	return false
}
