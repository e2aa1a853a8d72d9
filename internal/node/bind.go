package node

import (
	"fmt"
	"os"
	"slices"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
)

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
		if t.HostPhase = before; before == "" {
			t.HostPath = ""
		}
		return err
	}
	d.dirty = true
	if err := mount.Bind(path, host, mount.ReadOnlyIf(t.ReadOnly)); err != nil {
		if at, unknown := d.boundAt(t); before == "" && len(at) == 0 && unknown == nil {
			t.HostPath, t.HostPhase = "", ""
		}
		return fmt.Errorf("%w: %w", errHostPath, err)
	}
	at, _, err := d.a.table.At(host)
	t.HostPhase, t.HostDevice = decide.Bound, at.Device
	return err
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
	if err := d.settle(); err != nil {
		return err
	}
	at, err := d.boundAt(t)
	if err != nil {
		return err
	}
	top, mounted, err := d.a.table.At(t.HostPath)
	switch {
	case err != nil:
		return err
	case len(at) > 0 && !slices.Contains(at, top.ID):
		// Nobody sees the volume there, and it is mounted nevertheless.
		return fmt.Errorf("%w: %s: %w: %s", errHostPath, t.HostPath, mount.ErrOccupied, top.Source)
	case len(at) > 0:
		unmount := mount.Unmount
		if d.f.Dead[path] {
			unmount = mount.Detach
		}
		if err := unmount(t.HostPath); err != nil {
			return err
		}
	case mounted:
		d.a.Log.Warn("mount at a host path stays, it shows something else", "volume", d.f.Volume, "path", t.HostPath)
	}
	t.HostPath, t.HostPhase, t.HostDevice, d.dirty = "", "", "", true
	return nil
}

// boundAt returns the mounts at the target's host path that are of the volume's
// filesystem, as it is now or was when it was bound there.
func (d *deed) boundAt(t *decide.Target) ([]int, error) {
	own := map[string]bool{t.HostDevice: t.HostDevice != ""}
	points, err := d.a.table.Points()
	if err != nil {
		return nil, err
	}
	for _, path := range []string{t.Path, d.rec.StagingPath} {
		if p, ok := points[path]; ok {
			own[p.Device] = true
		}
	}
	below, err := mount.Below(t.HostPath)
	if err != nil {
		return nil, err
	}
	var at []int
	for _, p := range below {
		if p.Path == t.HostPath && own[p.Device] {
			at = append(at, p.ID)
		}
	}
	return at, nil
}
