package driver

import (
	"context"
	"fmt"
	"strconv"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

// VolumeName returns the volume's name for Detach: the answer of getvolumename or, if that is
// unsupported or disabled, v.Name (F-018, F-019). It may be repeated.
func (d *Driver) VolumeName(ctx context.Context, v decide.Volume) (string, error) {
	if d.o.Settings.VolumeName == decide.NameOfVolume {
		return v.Name, nil
	}
	const op = decide.OpGetVolumeName
	a, err := d.askAbout(ctx, v, call{op: op, key: "name of " + v.Name},
		func(json string) []string { return []string{json} })
	if err != nil || a.Status == decide.NotSupported {
		return v.Name, err
	}
	name, err := decide.VolumeNameOf(a)
	if err != nil {
		return "", d.fail(op, volume.Failed, err)
	}
	d.o.Calls.setName(d.Name.String(), v.Name, name)
	return name, nil
}

// askAbout makes a call about a volume: args returns its arguments, of which one is the volume's JSON. If the call has
// no key, its object is the volume.
func (d *Driver) askAbout(
	ctx context.Context, v decide.Volume, c call, args func(json string) []string,
) (decide.Answer, error) {
	json, err := d.argument(c.op, v)
	if err != nil {
		return decide.Answer{}, err
	}
	if c.args = args(json); c.key == "" {
		c.key, c.volume = "volume "+d.o.Calls.nameOf(d.Name.String(), v.Name), v.Name
	}
	return d.ask(ctx, c)
}

// Attach attaches a volume to a node and returns its device there, or "" if the driver does not
// know it. If the driver does not support attach, that is a success without a device. It may be
// repeated.
func (d *Driver) Attach(ctx context.Context, v decide.Volume, node string) (string, error) {
	a, err := d.askAbout(ctx, v, call{op: decide.OpAttach, keep: true},
		func(json string) []string { return []string{json, node} })
	return a.Device, err
}

// IsAttached says whether a volume is attached to a node; known is false if the driver cannot tell.
func (d *Driver) IsAttached(ctx context.Context, v decide.Volume, node string) (attached, known bool, err error) {
	a, err := d.askAbout(ctx, v, call{op: decide.OpIsAttached},
		func(json string) []string { return []string{json, node} })
	if err != nil || a.Attached == nil {
		return false, false, err
	}
	return *a.Attached, true, nil
}

// WaitForAttach waits until the device of a volume exists on this node and returns its path. device
// is the result of Attach. It may be repeated.
func (d *Driver) WaitForAttach(ctx context.Context, device string, v decide.Volume) (string, error) {
	a, err := d.askAbout(ctx, v, call{op: decide.OpWaitForAttach, keep: true},
		func(json string) []string { return []string{device, json} })
	if err != nil {
		return "", err
	}
	if a.Device == "" {
		// The operation is not supported, or the driver knows no other device than attach did.
		return device, nil
	}
	return a.Device, nil
}

// Detach detaches a volume from a node; name is the result of VolumeName. It may be repeated.
func (d *Driver) Detach(ctx context.Context, name, node string) error {
	if err := decide.CheckComponent(name); err != nil {
		return d.fail(decide.OpDetach, volume.Failed, fmt.Errorf("%w: %w", decide.ErrVolumeName, err))
	}
	_, err := d.ask(ctx, call{op: decide.OpDetach, key: "volume " + name, args: []string{name, node}, keep: true})
	if err == nil {
		d.o.Calls.forget(d.Name.String(), name)
	}
	return err
}

// ExpandVolume expands a volume and returns its size in bytes. If the operation is unsupported or
// disabled, that is a success: the volume is expanded by other means. It may be repeated.
func (d *Driver) ExpandVolume(
	ctx context.Context, v decide.Volume, deviceDir string, newSize, oldSize int64,
) (int64, error) {
	if d.o.Settings.SkipExpandVolume {
		return newSize, nil
	}
	a, err := d.askAbout(ctx, v, call{op: decide.OpExpandVolume, keep: true}, func(json string) []string {
		return []string{json, deviceDir, strconv.FormatInt(newSize, 10), strconv.FormatInt(oldSize, 10)}
	})
	if err != nil {
		return 0, err
	}
	if a.NewSize == 0 {
		return newSize, nil
	}
	return a.NewSize, nil
}

// ExpandFS expands the filesystem mounted at dir to the size of its device. If the driver does not
// support that, the host does it for the filesystems that it knows; for others the error is
// ErrNotSupported. It may be repeated.
func (d *Driver) ExpandFS(ctx context.Context, v decide.Volume, device, dir string, newSize, oldSize int64) error {
	a, err := d.askAbout(ctx, v, call{op: decide.OpExpandFS, key: "directory " + dir}, func(json string) []string {
		return []string{json, device, dir, strconv.FormatInt(newSize, 10), strconv.FormatInt(oldSize, 10)}
	})
	if err != nil || a.Status != decide.NotSupported {
		return err
	}
	return d.grow(ctx, dir)
}
