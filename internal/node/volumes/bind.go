package volumes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
)

// bind makes the target visible at the host path that the Pod asks for.
func (d *applier) bind(path string) error {
	c := d.consumer(path)
	t, host := d.rec.Target(path), c.HostPath
	if t == nil {
		return fmt.Errorf("%w: target %s does not exist", uses.ErrHostPath, path)
	}
	if err := d.checkAbove(c.UID, host); err != nil {
		return err
	}
	if err := d.checkHostPath(host); err != nil {
		return err
	}
	before := t.HostPhase
	t.HostPath, t.HostPhase = host, decide.Binding
	if err := d.save(); err != nil {
		if t.HostPhase = before; before == "" {
			t.HostPath = ""
		}
		return err
	}
	d.dirty = true
	if err := d.bindTarget(path, t, c.HostOptions); err != nil {
		if at, _, unknown := d.boundAt(t); before == "" && len(at) == 0 && unknown == nil {
			t.HostPath, t.HostPhase = "", ""
		}
		return fmt.Errorf("%w: %w", uses.ErrHostPath, err)
	}
	points, err := d.table.Below(host)
	var devices []string
	for _, p := range points {
		devices = append(devices, p.Device)
	}
	t.HostPhase, t.HostDevice = decide.Bound, strings.Join(devices, " ")
	return err
}

// bindTarget bind-mounts the target at its host path. An incomplete bind mount is replaced.
func (d *applier) bindTarget(path string, t *decide.Target, o decide.BindOptions) error {
	if points, err := d.table.Below(t.HostPath); err != nil || 0 < len(points) && len(points) < t.Mounts {
		if err = errors.Join(err, d.unmountBound(path, t)); err != nil {
			return err
		}
	}
	return mount.Bind(path, t.HostPath, attributes(o, t.ReadOnly))
}

// attributes returns the attributes of a bind mount with the options.
func attributes(o decide.BindOptions, readOnly bool) mount.Attr {
	var attr mount.Attr
	for a, set := range map[mount.Attr]bool{
		mount.ReadOnly: readOnly || o.ReadOnly, mount.NoSUID: !o.SUID, mount.NoDev: !o.Dev, mount.NoExec: o.NoExec,
		mount.NoAtime: o.NoAtime, mount.NoDirAtime: o.NoDirAtime,
	} {
		if set {
			attr |= a
		}
	}
	return attr
}

// checkAbove makes a volume wait for those that other Pods get at directories above its own. After a boot all of them
// come at the same time.
func (d *applier) checkAbove(podUID, host string) error {
	var all []decide.Shown
	for _, pod := range d.Pods.List() {
		path, _, err := d.Finder.HostPath(pod)
		if err != nil || path == "" || string(pod.UID) == podUID || !uses.Alive(pod) || !decide.IsAbove(path, host) {
			continue // the mount table is read only for those above
		}
		_, mounted, err := d.table.At(path)
		all = append(all, decide.Shown{
			Path: path, Pod: pod.Namespace + "/" + pod.Name, Mounted: mounted || err != nil,
		})
	}
	for _, first := range decide.HideLater(host, all) {
		// A Pod whose directory is unusable hides nothing.
		if d.checkHostPath(first.Path) == nil {
			return fmt.Errorf("%w: %s: pod %s gets its volume at %s first, which would hide this one; wait for that, or delete "+
				"that pod", uses.ErrHostPath, host, first.Pod, first.Path)
		}
	}
	return nil
}

// checkHostPath refuses a path that is not a directory, or that leads to a protected directory, before
// anything is written.
func (d *applier) checkHostPath(host string) error {
	if d.f.Block {
		return fmt.Errorf("%w: volume %s is a block device", uses.ErrHostPath, d.f.Volume)
	}
	if protected, err := mount.Within(host, d.Finder.ProtectedDirs()...); err != nil || protected {
		return errors.Join(err, fmt.Errorf("%w: %.200s leads to a directory that volumes depend on, or covers one",
			uses.ErrHostPath, host))
	}
	info, err := os.Lstat(host)
	switch {
	case err != nil:
		return fmt.Errorf("%w: create the directory first: %w", uses.ErrHostPath, err)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory", uses.ErrHostPath, host)
	}
	return nil
}

// unbind unmounts the host path, if the mount there is the one that bind made.
func (d *applier) unbind(path string) error {
	t := d.rec.Target(path)
	t.HostPhase = decide.Unbinding
	if err := d.settle(); err != nil {
		return err
	}
	if err := d.unmountBound(path, t); err != nil {
		return err
	}
	t.HostPath, t.HostPhase, t.HostDevice, d.dirty = "", "", "", true
	return nil
}

// unmountBound unmounts the target's host path, but nothing that another program has mounted there or
// below it.
func (d *applier) unmountBound(path string, t *decide.Target) error {
	at, foreign, err := d.boundAt(t)
	if err != nil {
		return err
	}
	top, mounted, err := d.table.At(t.HostPath)
	switch {
	case err != nil:
		return err
	case len(at) > 0 && !slices.Contains(at, top.ID):
		// The volume is mounted there, but hidden by another mount.
		return fmt.Errorf("%w: %s: %w: %s", uses.ErrHostPath, t.HostPath, mount.ErrOccupied, top.Source)
	case len(at) > 0 && foreign != "":
		return fmt.Errorf("%w: %s: %w", uses.ErrHostPath, foreign, mount.ErrOccupied)
	case len(at) > 0:
		unmount := mount.Unmount
		if d.f.Dead[path] || d.f.Dead[t.HostPath] {
			unmount = mount.Detach
		}
		return unmount(t.HostPath)
	case mounted:
		d.Log.Warn("mount at a host path stays, it shows something else", "volume", d.f.Volume, "path", t.HostPath)
	}
	return nil
}

// boundAt returns the ids of the mounts at the target's host path that show the volume's filesystems
// (those mounted now or at the time of the bind), and a path below it where another filesystem is
// mounted.
func (d *applier) boundAt(t *decide.Target) (at []int, foreign string, err error) {
	own := map[string]bool{}
	for device := range strings.FieldsSeq(t.HostDevice) {
		own[device] = true
	}
	for _, path := range []string{t.Path, d.rec.StagingPath} {
		points, err := d.table.Below(path)
		if err != nil {
			return nil, "", err
		}
		for _, p := range points {
			own[p.Device] = true
		}
	}
	below, err := mount.Below(t.HostPath)
	for _, p := range below {
		switch {
		case own[p.Device] && p.Path == t.HostPath:
			at = append(at, p.ID)
		case !own[p.Device] && p.Path != t.HostPath:
			foreign = p.Path
		}
	}
	return at, foreign, err
}
