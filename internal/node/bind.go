package node

import (
	"fmt"
	"os"

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
	if err := d.settle(); err != nil {
		return err
	}
	if d.showsTarget(t) {
		unmount := mount.Unmount
		if d.f.Dead[path] {
			unmount = mount.Detach
		}
		if err := unmount(t.HostPath); err != nil {
			return err
		}
	} else if _, mounted, err := d.a.table.At(t.HostPath); err != nil {
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
	host, mounted, err := d.a.table.At(t.HostPath)
	if err != nil || !mounted {
		return false
	}
	for _, path := range []string{t.Path, d.rec.StagingPath} {
		if own, ok, err := d.a.table.At(path); err == nil && ok && own.Device == host.Device {
			return true
		}
	}
	return false
}
