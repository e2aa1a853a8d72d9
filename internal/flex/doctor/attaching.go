package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/workshop/finding"
	"volplane.dev/volplane/internal/workshop/scratch"
)

// attachable makes the checks of a driver that attaches, including those of mount and unmount while
// the volume is attached.
func (x *exam) attachable(ctx context.Context, v vol) {
	name, ok := x.volumeName(ctx, v)
	if !ok {
		return
	}
	x.observe(ctx, v)
	given, ok := x.attach(ctx, v, name)
	if !ok {
		return
	}
	device, ok := x.waits(ctx, v, given)
	if !ok {
		return
	}
	x.emptyDevice(ctx, v, given, device)
	if x.mountDevice(ctx, v, device) {
		x.mountable(ctx, v)
		x.grows(ctx, v, device, v.deviceDir)
		x.unmountDevice(ctx, v)
	}
	x.detachByName(ctx, v, name)
	x.detach(ctx, v, name)
}

// volumeName calls getvolumename.
func (x *exam) volumeName(ctx context.Context, v vol) (string, bool) {
	c := x.call(ctx, decide.OpGetVolumeName, x.json(decide.OpGetVolumeName, v))
	if c.unsupported() {
		x.pass("getvolumename", "Not supported: the volume has its object's name")
		return v.Name, true
	}
	const check = "getvolumename"
	if !c.ok() {
		x.fail(check, both(), "answer the name that the volume has on all nodes, or Not supported",
			"hosts give the mount up: %s", c.why())
		return "", false
	}
	// Kubernetes ignores the name.
	name, err := decide.VolumeNameOf(c.answer)
	if err != nil {
		x.fail(check, volplane(), "answer a name that can be a part of a path, or Not supported", "%v", err)
		return v.Name, true
	}
	again := x.call(ctx, decide.OpGetVolumeName, x.json(decide.OpGetVolumeName, v))
	x.wrongIf(again.answer.VolumeName != c.answer.VolumeName, "it gives one volume two names",
		question{check, volplane(), "make the name of the options and of nothing else", "the volume is called " + name})
	return name, true
}

// observe calls isattached before the volume is attached, which no host does: a driver that says
// then that it is attached always says so, and says nothing by it.
func (x *exam) observe(ctx context.Context, v vol) {
	c := x.call(ctx, decide.OpIsAttached, x.json(decide.OpIsAttached, v), x.Node)
	x.unjudged()
	x.observes = c.ok() && c.answer.Attached != nil && !*c.answer.Attached
}

// attach attaches the volume twice.
func (x *exam) attach(ctx context.Context, v vol, name string) (device string, ok bool) {
	x.undo = append(x.undo, undo{decide.OpDetach, name})
	first := x.call(ctx, decide.OpAttach, x.json(decide.OpAttach, v), x.Node)
	if !first.ok() && !first.unsupported() {
		x.add(finding.Finding{
			Check: "attach", Level: finding.Fail, Message: first.why(), Breaks: both(),
			Next: decide.PodAuthor.Should(giveOptions),
		})
		return "", false
	}
	x.pass("attach", "the device is %q", first.answer.Device)
	again := x.call(ctx, decide.OpAttach, x.json(decide.OpAttach, v), x.Node)
	x.wrongIf(!again.ok() && !again.unsupported(), "what is attached should be a success: "+again.why(),
		question{"attach-again", nil, "look first whether it is attached", "what is attached stays as it is"})
	if again.ok() && again.answer.Device != first.answer.Device {
		x.fail("attach-device", both(), "answer the device that the volume has already",
			"attached again, the device is %q, not %q", again.answer.Device, first.answer.Device)
	}
	x.attached(ctx, v)
	return first.answer.Device, !x.stopped()
}

// sayAttached is the advice about isattached.
const sayAttached = `answer "attached" with true or false, without quotes, or Not supported`

// attached calls isattached for a volume that is attached.
func (x *exam) attached(ctx context.Context, v vol) {
	const name = "isattached"
	c := x.call(ctx, decide.OpIsAttached, x.json(decide.OpIsAttached, v), x.Node)
	switch {
	case c.unsupported():
		x.pass(name, "Not supported: hosts believe that it is as they left it")
	case !c.ok():
		x.fail(name, volplane(), sayAttached, "%s; Kubernetes ignores that", c.why())
	case c.answer.Attached == nil:
		x.warn(name, sayAttached, "the answer has no \"attached\"")
	case !*c.answer.Attached:
		x.fail(name, kubernetes(), "ask the storage, not a file of yours",
			"attached is false, and should be true: Kubernetes attaches the volume elsewhere then")
	default:
		x.pass(name, "attached is true")
	}
}

// stillAttached says whether the driver reports a detached volume as attached. That counts only
// if it knows the difference; no host makes this call.
func (x *exam) stillAttached(ctx context.Context, v vol) bool {
	c := x.call(ctx, decide.OpIsAttached, x.json(decide.OpIsAttached, v), x.Node)
	x.unjudged()
	return x.observes && c.ok() && c.answer.Attached != nil && *c.answer.Attached
}

// waits calls waitforattach twice.
func (x *exam) waits(ctx context.Context, v vol, device string) (string, bool) {
	c := x.call(ctx, decide.OpWaitForAttach, device, x.json(decide.OpWaitForAttach, v))
	if c.unsupported() {
		x.pass("waitforattach", "Not supported: the device is what attach says")
		return device, true
	}
	if !c.ok() {
		x.fail("waitforattach", both(), "answer the path of the device on this node as soon as it is there", "%s", c.why())
		return "", false
	}
	again := x.call(ctx, decide.OpWaitForAttach, device, x.json(decide.OpWaitForAttach, v))
	x.wrongIf(!again.ok() || again.answer.Device != c.answer.Device, "called again, it answers differently: "+again.why(),
		question{"waitforattach", both(), "answer the existing device", "the device is " + c.answer.Device})
	return c.answer.Device, true
}

// mountDevice mounts the device twice.
func (x *exam) mountDevice(ctx context.Context, v vol, device string) bool {
	if err := os.MkdirAll(v.deviceDir, 0o750); err != nil {
		x.stop(err)
	}
	x.undo = append(x.undo, undo{decide.OpUnmountDevice, v.deviceDir})
	c := x.call(ctx, decide.OpMountDevice, v.deviceDir, device, x.json(decide.OpMountDevice, v))
	const name = "mountdevice"
	if c.unsupported() {
		return x.hostMounts(ctx, v, device)
	}
	if !c.ok() {
		x.fail(name, both(), x.byHand("mountdevice DIR DEVICE JSON"), "%s", c.why())
		return false
	}
	if len(at(c.after, v.deviceDir)) == 0 {
		x.warn(name, "mount the device there, or answer Not supported, and the host does",
			"it answers Success and nothing is mounted at the directory")
		return true
	}
	x.pass(name, "%s is mounted", at(c.after, v.deviceDir)[0].Source)
	before := within(c.after, v.deviceDir)
	again := x.call(ctx, decide.OpMountDevice, v.deviceDir, device, x.json(decide.OpMountDevice, v))
	x.unjudged()
	switch after := within(again.after, v.deviceDir); {
	case len(after) != len(before):
		x.warn("mountdevice-again", lookFirst, "called again, there are %d mounts, not %d", len(after), len(before))
	case !again.ok():
		x.warn("mountdevice-again", lookFirst, "what is mounted should be a success: %s", again.why())
	default:
		x.pass("mountdevice-again", "what is mounted stays as it is")
	}
	x.peel(v.deviceDir, before)
	return !x.stopped()
}

// hostMounts mounts the device as a host does for a driver without mountdevice, and says whether the
// volume can be mounted then.
func (x *exam) hostMounts(ctx context.Context, v vol, device string) bool {
	const name = "mountdevice"
	if device == "" {
		x.pass(name, "Not supported, and there is no device: mount does everything")
		return !x.stopped()
	}
	err := driver.MountDeviceByHost(ctx, v.deviceDir, device, v.Volume)
	switch {
	case errors.Is(err, mount.ErrUnknownFS):
		x.add(finding.Finding{
			Check: name, Level: finding.Warn,
			Message: fmt.Sprintf("Not supported, and this host cannot mount %s: %v", device, err),
			Next: finding.Administrator.Should("install the tools of " + cmp.Or(v.FSType, "ext4") + ", or give another " +
				"--fstype"),
		})
		return false
	case err != nil:
		x.fail(name, both(), "answer waitforattach with a block device, or mount the volume in mountdevice",
			"Not supported, and a host cannot mount %s: %v", device, err)
		return false
	}
	x.pass(name, "Not supported: the host mounts %s", device)
	return !x.stopped()
}

// unmountDevice undoes mountdevice twice.
func (x *exam) unmountDevice(ctx context.Context, v vol) {
	x.undoes(ctx, "unmountdevice", decide.OpUnmountDevice, v.deviceDir)
	if err := scratch.UnmountBelow(v.deviceDir); err != nil {
		x.stop(err)
	}
	x.undoAgain(ctx, "unmountdevice-again", decide.OpUnmountDevice, v.deviceDir)
}

// detachByName detaches the volume by the name of its object, as Kubernetes does, whatever
// getvolumename answers, and attaches it again.
func (x *exam) detachByName(ctx context.Context, v vol, name string) {
	const check, advice = "detach-by-object", "also find the volume by the name of its object"
	if name == v.Name {
		return
	}
	c := x.call(ctx, decide.OpDetach, v.Name, x.Node)
	switch {
	case !c.ok() && !c.unsupported():
		x.fail(check, kubernetes(), advice, "Kubernetes ignores getvolumename, and passes %q: %s", v.Name, c.why())
	case !c.unsupported() && x.stillAttached(ctx, v):
		x.fail(check, kubernetes(), advice,
			"Kubernetes ignores getvolumename, and passes %q: detach answers Success, and the volume is still attached", v.Name)
	default:
		x.pass(check, "the volume is detached by the name that Kubernetes passes, too")
	}
	x.call(ctx, decide.OpAttach, x.json(decide.OpAttach, v), x.Node)
}

// detach detaches the volume twice.
func (x *exam) detach(ctx context.Context, v vol, name string) {
	// Kubernetes passes another name, if the driver has one of its own.
	breaks := both()
	if name != v.Name {
		breaks = volplane()
	}
	c := x.call(ctx, decide.OpDetach, name, x.Node)
	if !c.ok() && !c.unsupported() {
		x.fail("detach", breaks, "find the volume by its name and the node: there are no options", "%s", c.why())
		return
	}
	if !c.unsupported() && x.stillAttached(ctx, v) {
		x.fail("detach", breaks, "detach the volume before answering Success",
			"detach answers Success, and isattached says that the volume is still attached")
		return
	}
	x.pass("detach", "it answers %q", c.answer.Status)
	x.undo = slices.DeleteFunc(x.undo, func(u undo) bool { return u.op == decide.OpDetach })
	again := x.call(ctx, decide.OpDetach, name, x.Node)
	x.wrongIf(!again.ok() && !again.unsupported(), "what is detached should be a success: "+again.why(),
		question{"detach-again", nil, "answer Success when it is not attached", "what is detached already is a success"})
}

// emptyDevice calls waitforattach with an empty device, as a host does that got no device from
// attach: given is what attach has answered, and device what waitforattach has. A driver that passes
// its arguments on as $* loses an empty one, so that the others shift.
func (x *exam) emptyDevice(ctx context.Context, v vol, given, device string) {
	const name = "empty-device"
	r := x.beginWithin(ctx, min(x.Limit, initLimit), decide.OpWaitForAttach, "", x.json(decide.OpWaitForAttach, v))
	r.mayHang = true
	c := x.finish(r)
	q := question{name, nil, "find the device by the options when no device is given", "an empty device is an " +
		"argument, too"}
	if given == "" {
		q.breaks = both()
	} else {
		x.unjudged()
	}
	reason := ""
	switch got := c.answer.Device; {
	case c.overdue:
		reason = "with an empty device it waits for ever, though the volume is attached"
	case strings.ContainsAny(got, "{}\""):
		reason, q.advice = "with an empty device it takes the JSON for one: its arguments shift", quoteArguments
	case c.ok() && got != device:
		reason = fmt.Sprintf("with an empty device it answers %q, and with the one of attach %q", got, device)
		q.advice = "find the device by the options when no device is given, and " + quoteArguments
	case !c.ok() && !c.unsupported():
		reason = "with an empty device, " + c.why()
		q.advice = "find the device by the options when no device is given, and " + quoteArguments
	}
	x.answer(q, reason)
}
