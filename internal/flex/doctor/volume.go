package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/workshop/scratch"
)

// vol is a volume for one Pod, at the paths that drivers rely on.
type vol struct {
	decide.Volume
	// dir is the mount point of the volume, deviceDir that of its device.
	dir, deviceDir string
}

// volume returns a volume in the scratch directory.
func (x *exam) volume(name string, pod int) vol { return x.volumeBelow(x.root, name, pod) }

func (x *exam) volumeBelow(root, name string, pod int) vol {
	uid := fmt.Sprintf("00000000-0000-4000-8000-%012d", pod)
	device := filepath.Join(root, "plugins/kubernetes.io/flexvolume", x.Name.Vendor, x.Name.Driver, "mounts", name)
	group := int64(4321)
	return vol{
		Volume: decide.Volume{
			Name: name, FSType: x.FSType, Options: x.Options, Secrets: x.Secrets, FSGroup: &group,
			Pod: decide.PodInfo{Name: fmt.Sprint("pod", pod), Namespace: "default", UID: uid, ServiceAccount: "default"},
		},
		dir: filepath.Join(root, "pods", uid, "volumes", x.Name.Dir(), name), deviceDir: device,
	}
}

// json returns the JSON argument of an operation.
func (x *exam) json(op decide.Operation, v vol) string {
	s, err := decide.Argument(op, v.Volume)
	if err != nil {
		x.stop(err)
	}
	return s
}

// mount creates the directory, calls mount with an argument, and does what the driver leaves to the host.
func (x *exam) mount(ctx context.Context, v vol, argument string) call {
	return x.mounted(v, x.beginMount(ctx, v, argument))
}

func (x *exam) beginMount(ctx context.Context, v vol, argument string) *running {
	if err := os.MkdirAll(v.dir, 0o750); err != nil {
		x.stop(err)
	}
	x.undo = append(x.undo, undo{decide.OpUnmount, v.dir})
	return x.begin(ctx, decide.OpMount, v.dir, argument)
}

func (x *exam) mounted(v vol, r *running) call {
	c := x.finish(r)
	if c.unsupported() && len(at(c.after, v.deviceDir)) > 0 {
		if err := mount.Bind(v.deviceDir, v.dir, mount.ReadOnlyIf(v.ReadOnly)); err != nil {
			c.err = err
			return c
		}
		c.answer.Status, c.after, c.byHost = decide.Success, x.table(), true
	}
	return c
}

// unmount calls unmount and does what the driver leaves to the host.
func (x *exam) unmount(ctx context.Context, v vol) call {
	return x.undoAt(ctx, decide.OpUnmount, v.dir)
}

func (x *exam) undoAt(ctx context.Context, op decide.Operation, dir string) call {
	c := x.call(ctx, op, dir)
	if c.unsupported() && within(c.after, dir) != nil {
		if err := mount.Unmount(dir); err != nil {
			c.err = err
			return c
		}
		c.answer.Status, c.after, c.byHost = decide.Success, x.table(), true
	}
	return c
}

// up mounts a volume and says whether that succeeded.
func (x *exam) up(ctx context.Context, v vol) bool {
	c := x.mount(ctx, v, x.json(decide.OpMount, v))
	return c.ok() && len(within(c.after, v.dir)) > 0
}

// down unmounts the volume, by force if needed: the next check starts without mounts.
func (x *exam) down(ctx context.Context, v vol) {
	x.unmount(ctx, v)
	if err := scratch.UnmountBelow(v.dir); err != nil {
		x.stop(err)
	}
	if err := scratch.RemoveTree(v.dir); err != nil {
		x.stop(err)
	}
}

// through calls use with a directory at which a mounted volume is bound, with all mounts below it, as a Pod has it.
func (x *exam) through(v vol, use func(dir string) error) error {
	dir := filepath.Join(x.root, "pod")
	if _, err := mount.MakeDir(dir); err != nil {
		return err
	}
	err := mount.Bind(v.dir, dir, 0)
	if err == nil {
		err = errors.Join(use(dir), mount.Unmount(dir))
	}
	return errors.Join(err, mount.Remove(dir))
}

// seen checks whether a Pod sees all mounts of the volume: otherwise it would write to the directories below them.
func (x *exam) seen(v vol) {
	var missing []string
	err := x.through(v, func(dir string) error {
		table := x.table()
		for _, p := range within(table, v.dir) {
			if len(at(table, dir+strings.TrimPrefix(p.Path, v.dir))) == 0 {
				missing = append(missing, p.Path)
			}
		}
		return nil
	})
	reason := ""
	switch {
	case err != nil:
		reason = "the host cannot show the volume to a pod: " + err.Error()
	case len(missing) > 0:
		slices.Sort(missing)
		reason = "a pod does not see what is mounted at " + missing[0]
	}
	x.answer(question{
		"seen-by-pods", both(), "mount nothing unbindable at the directory or below it",
		"a pod sees all that is mounted, at the directory and below it",
	}, reason)
}
