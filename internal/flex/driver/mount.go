package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// MountDevice mounts a volume's device at dir, which is created. If the driver does not support that, the host does it:
// a blank device is formatted, and then mounted; without a device nothing is mounted. It may be repeated.
func (d *Driver) MountDevice(ctx context.Context, dir, device string, v decide.Volume) (volume.Because, error) {
	arg, err := d.argument(decide.OpMountDevice, v)
	if err != nil {
		return volume.Because{}, err
	}
	c := call{op: decide.OpMountDevice, args: []string{dir, device, arg}, secrets: v.Secrets}
	return d.mountAt(ctx, dir, c, func(ctx context.Context) error {
		if device == "" {
			return nil
		}
		return MountDeviceByHost(ctx, dir, device, v)
	})
}

// Mount mounts a volume at dir, which is created. deviceDir is where MountDevice has mounted the
// device; it is "" for drivers without attach. If the driver does not support mount, deviceDir is
// bind-mounted at dir (H3). If dir is mounted already, nothing is done (H5). It may be repeated.
func (d *Driver) Mount(ctx context.Context, dir, deviceDir string, v decide.Volume) (volume.Because, error) {
	arg, err := d.argument(decide.OpMount, v)
	if err != nil {
		return volume.Because{}, err
	}
	c := call{op: decide.OpMount, args: []string{dir, arg}, secrets: v.Secrets}
	return d.mountAt(ctx, dir, c, func(context.Context) error {
		if deviceDir == "" {
			return ErrNotSupported
		}
		_, mounted, err := mount.At(deviceDir)
		if err != nil {
			return err
		}
		if !mounted {
			// A bind mount would show an empty directory of the host's disk.
			return fmt.Errorf("%w, and nothing is mounted at %s that could be bound", ErrNotSupported, deviceDir)
		}
		return mount.Bind(deviceDir, dir, mount.ReadOnlyIf(v.ReadOnly))
	})
}

// MountDeviceByHost does what a host does for a driver without mountdevice.
func MountDeviceByHost(ctx context.Context, dir, device string, v decide.Volume) error {
	fsType := cmp.Or(v.FSType, "ext4")
	if !isDeviceFS(fsType) {
		return fmt.Errorf("%w: %.20q: the host mounts no such filesystem for a driver", mount.ErrUnknownFS, fsType)
	}
	options := []string{"rw"}
	if v.ReadOnly {
		options = []string{"ro"}
	} else if _, err := mount.SmallestFS(fsType); err == nil && filepath.IsAbs(device) {
		if err := mount.Format(ctx, device, fsType); err != nil {
			return err
		}
	}
	return mount.Device(ctx, device, dir, fsType, options)
}

// isDeviceFS says whether a filesystem type is one on a block device. The author of a Pod chooses
// the type, and other types are dangerous: mount(8) would show the host's own files with proc, and
// start any program as root with fuse.NAME.
func isDeviceFS(fsType string) bool {
	switch fsType {
	case "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "vfat", "exfat", "ntfs3", "iso9660", "udf",
		"squashfs", "erofs":
		return true
	}
	return false
}

// mountAt makes a call that mounts something at dir. byHost does it if the driver does not support the operation.
func (d *Driver) mountAt(
	ctx context.Context, dir string, c call, byHost func(context.Context) error,
) (volume.Because, error) {
	if err := checkDir(dir); err != nil {
		return volume.Because{}, d.fail(c.op, volume.Failed, err)
	}
	c.key = "directory " + dir
	result, err := d.o.Calls.join(ctx, d.task(c, func(ctx context.Context, overdue func()) (any, error) {
		return d.mountOnce(ctx, dir, c, byHost, overdue)
	}))
	if err != nil {
		return volume.Because{}, d.stillRunning(c.op, err)
	}
	why := result.(volume.Because)
	// The source of a mount can contain a password.
	why.Message = decide.Redact(why.Message, &d.o.Calls.secrets)
	return why, nil
}

func (d *Driver) mountOnce(
	ctx context.Context, dir string, c call, byHost func(context.Context) error, overdue func(),
) (volume.Because, error) {
	before, err := d.prepareDir(ctx, dir)
	if err != nil {
		return volume.Because{}, d.fail(c.op, volume.Failed, err)
	}
	if why, mounted := decide.Mounted(dir, before); mounted {
		return why, nil
	}
	a, callErr := d.start(c, overdue)
	after, err := mounts(dir)
	if err != nil {
		return volume.Because{}, d.fail(c.op, volume.Unknown, errors.Join(err, callErr))
	}
	v := decide.AfterMount(dir, before, after, a, callErr)
	left := undo(dir, before, v.Undo)
	if left != nil {
		v.Outcome = volume.Unknown
		v.Because.Message += ": " + left.Error()
	}
	if left == nil && v.Unsupported {
		if left = byHost(ctx); left == nil {
			return mountedByHost(dir)
		}
		v.Because.Message = left.Error()
	}
	if v.Outcome == volume.Done {
		return v.Because, nil
	}
	if a.Status != "" || isNotStarted(callErr) {
		// Otherwise the driver may have done a part of its work; the unmount that follows needs the directory.
		removeEmpty(dir)
	}
	return volume.Because{}, &CallError{
		Driver: d.Name, Op: c.op, Outcome: v.Outcome,
		Message: v.Because.Message, cause: errors.Join(callErr, left),
	}
}

// prepareDir creates dir and returns what is mounted there. If the server of a filesystem there has
// ended, all mounts are removed: they would count as a mounted volume forever.
func (d *Driver) prepareDir(ctx context.Context, dir string) ([]decide.Mount, error) {
	now, err := mounts(dir)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(now, func(m decide.Mount) bool { return d.dead.Dead(ctx, m.Path) }) {
		for _, m := range now {
			if err := mount.Detach(m.Path); err != nil {
				return nil, err
			}
		}
		now, err = mounts(dir)
	}
	if err != nil || len(now) > 0 {
		return now, err
	}
	if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		// H3: the driver's own, from a mount that succeeded.
		return now, nil
	}
	return now, mount.MakeBelow("/", dir)
}

// mountedByHost returns the reason of a mount that the host itself has made at dir.
func mountedByHost(dir string) (volume.Because, error) {
	now, err := mounts(dir)
	if err != nil {
		return volume.Because{}, err
	}
	return decide.ByHost(dir, now), nil
}

// Unmount undoes Mount and removes dir if it is empty then. It succeeds if nothing is mounted at or
// below dir, whatever the driver answers (H4). It may be repeated.
func (d *Driver) Unmount(ctx context.Context, dir string) (volume.Because, error) {
	return d.unmountAt(ctx, dir, decide.OpUnmount)
}

// UnmountDevice undoes MountDevice in the same way as Unmount undoes Mount.
func (d *Driver) UnmountDevice(ctx context.Context, dir string) (volume.Because, error) {
	return d.unmountAt(ctx, dir, decide.OpUnmountDevice)
}

func (d *Driver) unmountAt(ctx context.Context, dir string, op decide.Operation) (volume.Because, error) {
	if err := checkDir(dir); err != nil {
		return volume.Because{}, d.fail(op, volume.Failed, err)
	}
	c := call{op: op, key: "directory " + dir, args: []string{dir}}
	result, err := d.o.Calls.join(ctx, d.task(c, func(_ context.Context, overdue func()) (any, error) {
		return d.unmountOnce(dir, c, overdue)
	}))
	if err != nil {
		return volume.Because{}, d.stillRunning(op, err)
	}
	return result.(volume.Because), nil
}

func (d *Driver) unmountOnce(dir string, c call, overdue func()) (volume.Because, error) {
	before, err := mounts(dir)
	if err != nil {
		return volume.Because{}, d.fail(c.op, volume.Failed, err)
	}
	if len(before) == 0 && absent(dir) {
		return decide.AfterUnmount(dir, nil, nil, decide.Answer{Status: decide.Success}, nil).Because, nil
	}
	a, callErr := d.start(c, overdue)
	if isNotStarted(callErr) {
		// The driver did not run, so whatever it holds besides the mount is not released.
		return volume.Because{}, d.fail(c.op, volume.Failed, callErr)
	}
	after, err := mounts(dir)
	if err != nil {
		return volume.Because{}, d.fail(c.op, volume.Unknown, errors.Join(err, callErr))
	}
	v := decide.AfterUnmount(dir, before, after, a, callErr)
	if err := undo(dir, nil, v.Undo); err != nil {
		return volume.Because{}, d.fail(c.op, volume.Failed, fmt.Errorf("%s: %w", v.Because.Message, err))
	}
	if v.Outcome != volume.Done {
		return volume.Because{},
			&CallError{Driver: d.Name, Op: c.op, Outcome: v.Outcome, Message: v.Because.Message, cause: callErr}
	}
	if !removeEmpty(dir) {
		v.Because.Message += "; the driver left files there, which stay"
	}
	return v.Because, nil
}

// Clear unmounts what an interrupted call has left at or below dir. It must be called before Mount
// if a record says that a mount was begun but not that it was done. It may be repeated.
func (d *Driver) Clear(ctx context.Context, dir string) error {
	if err := checkDir(dir); err != nil {
		return err
	}
	t := task{key: d.Name.String() + " directory " + dir, what: "clear", do: func(context.Context, func()) (any, error) {
		left, err := mounts(dir)
		if err != nil {
			return nil, err
		}
		return nil, undo(dir, nil, decide.Added(dir, nil, left))
	}}
	if _, err := d.o.Calls.join(ctx, t); err != nil {
		return fmt.Errorf("clear %s: %w", dir, err)
	}
	return nil
}

// grow expands the filesystem at dir to the size of its device, by the host's own tools.
func (d *Driver) grow(ctx context.Context, dir string) error {
	const op = decide.OpExpandFS
	at, mounted, err := mount.At(dir)
	switch {
	case err != nil:
	case !mounted:
		err = fmt.Errorf("nothing is mounted at %s", dir)
	default:
		err = mount.Expand(ctx, at.Source, dir, at.Type)
	}
	if errors.Is(err, mount.ErrUnknownFS) {
		err = fmt.Errorf("%w: %w", ErrNotSupported, err)
	}
	if err != nil {
		return d.fail(op, volume.Failed, err)
	}
	return nil
}

// checkDir refuses directories that do not appear in the mount table as they are written.
func checkDir(dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
		return fmt.Errorf("directory %q: %w: it is not absolute and clean", dir, mount.ErrNotPlain)
	}
	real, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err == nil && real != filepath.Dir(dir) {
		return fmt.Errorf("directory %q: %w", dir, mount.ErrNotPlain)
	}
	return nil
}

// mounts returns what is mounted at and below dir.
func mounts(dir string) ([]decide.Mount, error) {
	points, err := mount.Below(dir)
	if err != nil {
		return nil, err
	}
	var out []decide.Mount
	for _, p := range points {
		out = append(out, decide.Mount{ID: p.ID, Path: p.Path, Device: p.Device, Source: p.Source, Type: p.Type})
	}
	return out, nil
}

// undo unmounts one mount at each path, unless it is mounted elsewhere as well. A busy mount is retried for a while and
// then stays: a lazy unmount would only hide it, and its users would still write when the device is attached to another
// node. The mount table shows whether undo succeeded: a mount at or below dir that was not there before is an error.
func undo(dir string, before []decide.Mount, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	var errs []error
	for i, path := range paths {
		if err := mount.StopPropagation(paths[i:]); err != nil {
			return err
		}
		if err := unmount(path); err != nil {
			errs = append(errs, err)
		}
	}
	now, err := mounts(dir)
	if err != nil {
		return err
	}
	if still := decide.Added(dir, before, now); len(still) > 0 {
		return errors.Join(append(errs, fmt.Errorf("still mounted: %s", strings.Join(still, ", ")))...)
	}
	return nil
}

func unmount(path string) (err error) {
	const tries = 10
	for range tries {
		if err = mount.UnmountTop(path, false); !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return err
}

// removeEmpty removes a directory if it is empty, or a symbolic link in its place, and says whether
// nothing is at the path any more.
func removeEmpty(dir string) bool {
	if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return mount.Unlink(dir) == nil
	}
	return mount.Remove(dir) == nil
}

func absent(dir string) bool {
	_, err := os.Lstat(dir)
	return errors.Is(err, fs.ErrNotExist)
}
