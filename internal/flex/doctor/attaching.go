package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
)

// attachable makes the checks of a driver that attaches, including those of mount and unmount while
// the volume is attached.
func (x *exam) attachable(ctx context.Context, v vol) {
	name, ok := x.volumeName(ctx, v)
	if !ok {
		return
	}
	device, ok := x.attach(ctx, v, name)
	if !ok {
		return
	}
	if device, ok = x.waits(ctx, v, device); !ok {
		return
	}
	if x.mountDevice(ctx, v, device) {
		x.mountable(ctx, v)
		x.grows(ctx, v, device, v.deviceDir)
		x.unmountDevice(ctx, v)
	}
	x.emptyDevice(ctx, v)
	x.detach(ctx, v, name)
}

// volumeName calls getvolumename.
func (x *exam) volumeName(ctx context.Context, v vol) (string, bool) {
	c := x.call(ctx, decide.OpGetVolumeName, x.json(decide.OpGetVolumeName, v))
	if c.unsupported() {
		x.pass("getvolumename", "Not supported: the volume has its object's name")
		return v.Name, true
	}
	if !c.ok() {
		x.fail("getvolumename", "answer the name that the volume has on all nodes, or Not supported",
			"hosts give the mount up: %s", c.why())
		return "", false
	}
	name, err := decide.VolumeNameOf(c.answer)
	if err != nil {
		x.fail("getvolumename", "answer a name that can be a part of a path; each / becomes ~", "%v", err)
		return "", false
	}
	again := x.call(ctx, decide.OpGetVolumeName, x.json(decide.OpGetVolumeName, v))
	reason := ""
	if again.answer.VolumeName != c.answer.VolumeName {
		reason = "it gives one volume two names"
	}
	x.answer(question{
		"getvolumename", decide.Fail, "make the name of the options and of nothing else", "the volume is called " + name,
	}, reason)
	return name, true
}

// attach attaches the volume twice.
func (x *exam) attach(ctx context.Context, v vol, name string) (device string, ok bool) {
	x.undo = append(x.undo, undo{decide.OpDetach, name})
	first := x.call(ctx, decide.OpAttach, x.json(decide.OpAttach, v), x.node)
	if !first.ok() && !first.unsupported() {
		x.fail("attach", giveOptions, "%s", first.why())
		return "", false
	}
	x.pass("attach", "the device is %q", first.answer.Device)
	again := x.call(ctx, decide.OpAttach, x.json(decide.OpAttach, v), x.node)
	reason := ""
	if !again.ok() && !again.unsupported() {
		reason = "what is attached should be a success: " + again.why()
	}
	x.answer(question{"attach-again", decide.Warn, "look first whether it is attached", "what is attached stays as it is"},
		reason)
	if again.ok() && again.answer.Device != first.answer.Device {
		x.fail("attach-device", "answer the device that the volume has already", "attached again, the device is %q, not %q",
			again.answer.Device, first.answer.Device)
	}
	x.attached(ctx, "isattached", v, true)
	return first.answer.Device, !x.stopped()
}

// sayAttached is the advice about isattached.
const sayAttached = `answer "attached" with true or false, without quotes, or Not supported`

// attached calls isattached and compares the answer with want.
func (x *exam) attached(ctx context.Context, name string, v vol, want bool) {
	c := x.call(ctx, decide.OpIsAttached, x.json(decide.OpIsAttached, v), x.node)
	switch {
	case c.unsupported():
		x.pass(name, "Not supported: hosts believe that it is as they left it")
	case !c.ok():
		x.fail(name, sayAttached, "%s", c.why())
	case c.answer.Attached == nil:
		x.warn(name, sayAttached, "the answer has no \"attached\"")
	case *c.answer.Attached != want:
		x.fail(name, "ask the storage, not a file of yours", "attached is %v, and should be %v", *c.answer.Attached, want)
	default:
		x.pass(name, "attached is %v", want)
	}
}

// waits calls waitforattach twice.
func (x *exam) waits(ctx context.Context, v vol, device string) (string, bool) {
	c := x.call(ctx, decide.OpWaitForAttach, device, x.json(decide.OpWaitForAttach, v))
	if c.unsupported() {
		x.pass("waitforattach", "Not supported: the device is what attach says")
		return device, true
	}
	if !c.ok() {
		x.fail("waitforattach", "answer the path of the device on this node as soon as it is there", "%s", c.why())
		return "", false
	}
	again := x.call(ctx, decide.OpWaitForAttach, device, x.json(decide.OpWaitForAttach, v))
	reason := ""
	if !again.ok() || again.answer.Device != c.answer.Device {
		reason = "asked again, it answers otherwise: " + again.why()
	}
	x.answer(question{
		"waitforattach", decide.Fail, "answer the device that is there already", "the device is " + c.answer.Device,
	}, reason)
	return c.answer.Device, true
}

// mountDevice mounts the device twice.
func (x *exam) mountDevice(ctx context.Context, v vol, device string) bool {
	if err := os.MkdirAll(v.deviceDir, 0o750); err != nil {
		x.stop(err)
	}
	x.undo = append(x.undo, undo{decide.OpUnmountDevice, v.deviceDir})
	c := x.call(ctx, decide.OpMountDevice, v.deviceDir, device, x.json(decide.OpMountDevice, v))
	if c.unsupported() {
		x.hostMounts(ctx, v, device)
		return !x.stopped()
	}
	if !c.ok() {
		x.fail("mountdevice", x.byHand("mountdevice DIR DEVICE JSON"), "%s", c.why())
		return false
	}
	if len(at(c.after, v.deviceDir)) == 0 {
		x.warn("mountdevice", "mount the device there, or answer Not supported, and the host does",
			"it answers Success and nothing is mounted at the directory")
		return true
	}
	x.pass("mountdevice", "%s is mounted", at(c.after, v.deviceDir)[0].source)
	again := x.call(ctx, decide.OpMountDevice, v.deviceDir, device, x.json(decide.OpMountDevice, v))
	switch before, after := at(c.after, v.deviceDir), at(again.after, v.deviceDir); {
	case len(after) != len(before):
		x.fail("mountdevice-again", lookFirst, "called again, there are %d mounts, not %d", len(after), len(before))
	case !again.ok():
		x.warn("mountdevice-again", lookFirst, "what is mounted should be a success: %s", again.why())
	default:
		x.pass("mountdevice-again", "what is mounted stays as it is")
	}
	return !x.stopped()
}

// hostMounts mounts the device as a host does for a driver without mountdevice.
func (x *exam) hostMounts(ctx context.Context, v vol, device string) {
	if device == "" {
		x.pass("mountdevice", "Not supported, and there is no device: mount does everything")
		return
	}
	fsType := v.FSType
	if fsType == "" {
		fsType = "ext4"
	}
	err := mount.Format(ctx, device, fsType)
	if err == nil {
		err = mount.Device(ctx, device, v.deviceDir, fsType, nil)
	}
	if err != nil {
		x.fail("mountdevice", "answer waitforattach with a block device, or mount the volume in mountdevice",
			"Not supported, and a host cannot mount %s: %v", device, err)
		return
	}
	x.pass("mountdevice", "Not supported: the host mounts %s", device)
}

// unmountDevice undoes mountdevice twice.
func (x *exam) unmountDevice(ctx context.Context, v vol) {
	c := x.undoAt(ctx, decide.OpUnmountDevice, v.deviceDir)
	switch left := within(c.after, v.deviceDir); {
	case len(left) > 0:
		x.fail("unmountdevice", "unmount what the mount table has at the directory, and answer Failure if that "+
			"cannot be done", "something is still mounted at %s: %s", left[0].path, c.why())
	case !c.ok() && !c.unsupported():
		x.warn("unmountdevice", "answer Success when nothing is mounted", "nothing is mounted any more, though %s", c.why())
	default:
		x.pass("unmountdevice", "nothing is mounted any more")
	}
	if err := x.unmountBelow(v.deviceDir); err != nil {
		x.stop(err)
	}
	x.undoTwice(ctx, "unmountdevice-again", decide.OpUnmountDevice, v.deviceDir)
}

// detach detaches the volume twice.
func (x *exam) detach(ctx context.Context, v vol, name string) {
	c := x.call(ctx, decide.OpDetach, name, x.node)
	if !c.ok() && !c.unsupported() {
		x.fail("detach", "find the volume by its name and the node: there are no options", "%s", c.why())
		return
	}
	x.pass("detach", "it answers %q", c.answer.Status)
	x.undo = slices.DeleteFunc(x.undo, func(u undo) bool { return u.op == decide.OpDetach })
	reason := ""
	if again := x.call(ctx, decide.OpDetach, name, x.node); !again.ok() && !again.unsupported() {
		reason = "what is detached should be a success: " + again.why()
	}
	x.answer(question{
		"detach-again", decide.Warn, "answer Success when it is not attached", "what is detached already is a success",
	}, reason)
	if !c.unsupported() {
		x.attached(ctx, "isattached-after", v, false)
	}
}

// emptyDevice calls waitforattach with an empty device, as a host does that got no device from
// attach. A driver that passes its arguments on as $* then takes the JSON for the device.
func (x *exam) emptyDevice(ctx context.Context, v vol) {
	argument := x.json(decide.OpWaitForAttach, v)
	r := x.begin(ctx, decide.OpWaitForAttach, "", argument)
	r.mayHang = true
	c := x.finish(r)
	device := c.answer.Device
	reason, next := "", "find the device by the options when none is given"
	switch {
	case c.overdue:
		reason = "with an empty device it waits for ever, though the volume is attached"
	case strings.ContainsAny(device, "{}\""):
		reason, next = "with an empty device it takes the JSON for one: its arguments shift", quoteArguments
	case c.ok() && device != "" && !filepath.IsAbs(device):
		reason = "with an empty device it answers " + device + ", which is no path"
	case c.err != nil:
		reason = "with an empty device, " + c.why()
	}
	x.answer(question{"empty-device", decide.Fail, next, "an empty device is an argument, too"}, reason)
}
