package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/workshop/finding"
)

// growth is the expansion of one volume, which is mounted at dir.
type growth struct {
	vol
	// device may be empty.
	device, dir string
	// size is the requested size of the volume in bytes, old its size before, and had that of its
	// filesystem before.
	size, old, had int64
	// done says that the driver claims to have expanded something.
	done bool
}

// grows expands a volume as a host does, if that was requested. The volume keeps its size.
func (x *exam) grows(ctx context.Context, v vol, device, dir string) {
	if x.GrowTo <= 0 || x.stopped() {
		return
	}
	if len(at(x.table(), dir)) == 0 {
		x.warn("grown", "mount the volume at the directory itself",
			"nothing is mounted at the directory: it is not known whether it is expanded")
		return
	}
	g := &growth{vol: v, device: device, dir: dir, size: x.GrowTo}
	if err := g.measure(); err != nil {
		x.stop(err)
		return
	}
	if g.size <= g.old {
		x.add(finding.Finding{
			Check: "grown", Level: finding.Warn,
			Message: fmt.Sprintf("nothing was tried: the volume has %d bytes already", g.old),
			Next:    decide.PodAuthor.Should("request more with --grow-to, or use a smaller volume"),
		})
		return
	}
	path := filepath.Join(dir, marker)
	written := os.WriteFile(path, []byte(marker), 0o600)
	if x.expandVolume(ctx, g) && x.expandFS(ctx, g) {
		x.grown(g)
	}
	if written != nil {
		x.warn("grown-data", "mount the volume so that root can write to it",
			"nothing can be written to the volume: %v", written)
		return
	}
	data, err := os.ReadFile(path)
	x.wrongIf(err != nil || !bytes.Equal(data, []byte(marker)),
		"what was written before the volume was expanded is lost", question{
			"grown-data", both(), "change only the size: create no new filesystem and no second mount",
			"what was written before is still there",
		})
	_ = os.Remove(path)
}

// measure reads the sizes before the expansion. The size of a volume is that of its device or,
// without one, of its filesystem.
func (g *growth) measure() error {
	u, err := mount.Stat(g.dir)
	if err != nil {
		return err
	}
	g.old, g.had = u.Total, u.Total
	if size := g.deviceSize(); size > 0 {
		g.old = size
	}
	return nil
}

// deviceSize returns the size of the device, or 0 if there is none.
func (g *growth) deviceSize() int64 {
	if g.device == "" {
		return 0
	}
	size, err := mount.DeviceSize(g.device)
	if err != nil {
		return 0
	}
	return size
}

// sizes returns the last two arguments of both operations.
func (g *growth) sizes() (size, old string) {
	return strconv.FormatInt(g.size, 10), strconv.FormatInt(g.old, 10)
}

// growToSize is the advice about expandvolume.
const growToSize = "expand it to the third argument, in bytes, if it is smaller"

// expandVolume calls expandvolume twice, and says whether a host continues.
func (x *exam) expandVolume(ctx context.Context, g *growth) bool {
	const name = "expandvolume"
	size, old := g.sizes()
	args := []string{x.json(decide.OpExpandVolume, g.vol), g.deviceDir, size, old}
	c := x.call(ctx, decide.OpExpandVolume, args...)
	has := g.deviceSize()
	switch {
	case c.unsupported():
		x.pass(name, "Not supported: hosts assume that another program expands the volume")
		return true
	case !c.ok():
		x.fail(name, volplane(), growToSize+`, and answer "volumeNewSize" with a number`, "%s", c.why())
		return false
	case c.answer.NewSize > 0 && c.answer.NewSize < g.size:
		x.fail(name, volplane(), growToSize+", or answer Failure",
			"it answers that the volume has %d bytes, %d were asked for", c.answer.NewSize, g.size)
	case has > 0 && has < g.size:
		x.fail(name, volplane(), growToSize+", and let the device see it",
			"it answers Success, and %s has %d bytes, %d were asked for", g.device, has, g.size)
	default:
		x.pass(name, "the volume has %d bytes", max(g.size, c.answer.NewSize))
	}
	reason := ""
	again := x.call(ctx, decide.OpExpandVolume, args...)
	switch {
	case !again.ok():
		reason = "a host that was interrupted calls it again: " + again.why()
	case again.answer.NewSize != c.answer.NewSize:
		reason = "called again, the volume has " + strconv.FormatInt(again.answer.NewSize, 10) + " bytes, not " +
			strconv.FormatInt(c.answer.NewSize, 10)
	case g.deviceSize() != has:
		reason = "called again, it expands the device again"
	}
	x.answer(question{"expandvolume-again", volplane(), growToSize, "what is as large already stays as it is"}, reason)
	g.done = true
	g.size = max(g.size, c.answer.NewSize)
	return true
}

// growFS is the advice about expandfs.
const growFS = "fit the filesystem at the directory to its device, and answer Success if it fits already"

// expandFS calls expandfs twice if a host does, and does what the driver leaves to the host. It
// says whether a host regards the volume as expanded.
func (x *exam) expandFS(ctx context.Context, g *growth) bool {
	const name = "expandfs"
	if !x.report.Capabilities.RequiresFSResize {
		x.pass(name, "requiresFSResize is false: hosts do not call it")
		return true
	}
	size, old := g.sizes()
	args := []string{x.json(decide.OpExpandFS, g.vol), g.device, g.dir, size, old}
	c := x.call(ctx, decide.OpExpandFS, args...)
	if c.unsupported() {
		return x.hostGrows(ctx, g)
	}
	if !c.ok() {
		if x.withheld(g) {
			return false
		}
		x.fail(name, both(), growFS, "%s", c.why())
		return false
	}
	g.done = true
	x.pass(name, "it answers Success")
	again := x.call(ctx, decide.OpExpandFS, args...)
	x.wrongIf(!again.ok(), "a host that was interrupted calls it again: "+again.why(),
		question{"expandfs-again", both(), growFS, "what is as large already is a success"})
	return true
}

// hostGrows fits the filesystem as a host does for a driver that does not.
func (x *exam) hostGrows(ctx context.Context, g *growth) bool {
	const name = "expandfs"
	ctx, cancel := context.WithTimeout(ctx, x.Limit)
	defer cancel()
	point, mounted, err := mount.At(g.dir)
	if err == nil && mounted {
		err = mount.Expand(ctx, point.Source, g.dir, point.Type)
	}
	switch {
	case errors.Is(err, mount.ErrUnknownFS) && g.device == "":
		// Without a device there is no filesystem that a host could expand.
		x.pass(name, "Not supported, and there is no device: hosts have nothing to do")
	case err != nil && x.withheld(g):
		return false
	case err != nil:
		x.fail(name, both(), growFS, "Not supported, and a host cannot expand it: %v", err)
		return false
	default:
		g.done = true
		x.pass(name, "Not supported: the host expands the filesystem")
	}
	return true
}

// withheld says whether this host withholds what the expansion of a mounted ext4 needs, which is not
// the driver's fault, and adds the finding.
func (x *exam) withheld(g *growth) bool {
	point, mounted, err := mount.At(g.dir)
	if err != nil || !mounted || !strings.HasPrefix(point.Type, "ext") || mayResize() {
		return false
	}
	x.add(finding.Finding{
		Check: "expandfs", Level: finding.Warn,
		Message: "not judged: a mounted ext4 can be expanded only with CAP_SYS_RESOURCE, which this host withholds",
		Next:    finding.Administrator.Should("run the doctor where the capability is granted, or with --fstype xfs"),
	})
	return true
}

// mayResize says whether this process has CAP_SYS_RESOURCE.
func mayResize() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Capget(&header, &caps[0]) == nil && caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// grown compares the driver's answers with the size of the filesystem.
func (x *exam) grown(g *growth) {
	u, err := mount.Stat(g.dir)
	switch {
	case err != nil:
		x.stop(err)
	case u.Total > g.had:
		x.pass("grown", "the filesystem has %d bytes, and had %d", u.Total, g.had)
	case g.done:
		x.fail("grown", both(), growFS+"; it is called if init says requiresFSResize",
			"the driver answers Success, and the filesystem has %d bytes, and had %d", u.Total, g.had)
	default:
		x.warn("grown", "do it in expandvolume or expandfs, if the volumes can be expanded",
			"hosts now assume %d bytes for the volume, and its filesystem has %d, as before", g.size, u.Total)
	}
}
