package flex

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/volume"
)

// Mount is one line of the mount table.
type Mount struct {
	// ID is the kernel's mount id.
	ID int
	// Path is the mount point.
	Path string
	// Device is "major:minor" of the filesystem.
	Device string
	// Source and Type are those that mount was called with.
	Source, Type string
}

// Verdict is the result of a call of mount, mountdevice, unmount or unmountdevice.
type Verdict struct {
	// Outcome is Done, Failed or Unknown.
	Outcome volume.Outcome
	// Unsupported says that the driver leaves the operation to the host.
	Unsupported bool
	// Undo are the paths to unmount, in this order, one mount for each entry; Outcome holds only
	// after that. All are at or below the directory of the call.
	Undo []string
	// Because says why. It may quote the driver, so the caller, who knows the secrets, has to
	// redact it.
	Because volume.Because
}

// AfterMount decides the result of mount or mountdevice from the mounts at and below dir before and
// after the call (H1 to H3). err is the error of a call without an answer.
func AfterMount(dir string, before, after []Mount, a Answer, err error) Verdict {
	if err == nil && a.Status == Success {
		return mounted(dir, below(dir, after))
	}
	v := Verdict{Outcome: volume.Failed, Undo: Added(dir, before, after)}
	reason := volume.ReasonFlexMountFailed
	if err == nil && a.Status == NotSupported {
		v.Unsupported = true
		reason = volume.ReasonFlexNotSupported
	}
	if isUnfinished(err) {
		v.Outcome = volume.Unknown
	}
	message := messageOf(a, err)
	if len(v.Undo) > 0 {
		// H2: what a failed mount leaves would pass for a mounted volume when it
		// is tried again.
		message += "; what it mounted is unmounted: " + strings.Join(v.Undo, ", ")
	}
	v.Because = volume.Because{Reason: reason, Message: message}
	return v
}

// Added returns the paths of the mounts at or below dir that did not exist before, in an order in
// which they can be unmounted.
func Added(dir string, before, after []Mount) []string {
	return lastFirst(slices.DeleteFunc(below(dir, after), func(m Mount) bool { return slices.Contains(before, m) }))
}

// Mounted says whether, and what, is mounted at or below dir, so that nothing has to be mounted
// (H5).
func Mounted(dir string, now []Mount) (volume.Because, bool) {
	if len(below(dir, now)) == 0 {
		return volume.Because{}, false
	}
	return mounted(dir, below(dir, now)).Because, true
}

// mounted returns the verdict if the driver reports success.
func mounted(dir string, after []Mount) Verdict {
	v := Verdict{Outcome: volume.Done, Because: volume.Because{Reason: volume.ReasonFlexMounted}}
	at := slices.DeleteFunc(slices.Clone(after), func(m Mount) bool { return m.Path != dir })
	switch {
	case len(at) > 0:
		top := at[len(at)-1]
		v.Because.Message = fmt.Sprintf("%s (%s) is mounted at %s", top.Source, top.Type, dir)
		if len(at) > 1 {
			v.Because.Message += fmt.Sprintf(", on top of %d more", len(at)-1)
		}
	case len(after) > 0:
		// H3: there are drivers that need no mount at the directory itself.
		v.Because.Reason = volume.ReasonFlexNothingMounted
		v.Because.Message = fmt.Sprintf("the driver says that it is done; nothing is mounted at %s, but at %s", dir,
			after[0].Path)
	default:
		v.Because.Reason = volume.ReasonFlexNothingMounted
		v.Because.Message = "the driver says that it is done, and nothing is mounted at " + dir
	}
	return v
}

// ByHost returns the reason of a mount that the host itself has made at dir for the driver.
func ByHost(dir string, now []Mount) volume.Because {
	if why, done := Mounted(dir, now); done {
		return why
	}
	return volume.Because{
		Reason:  volume.ReasonFlexNothingMounted,
		Message: "there is no device, and the driver leaves it to the host to mount one at " + dir,
	}
}

// AfterUnmount decides the result of unmount or unmountdevice from the mounts at and below dir
// before and after the call (H4). err is the error of a call without an answer.
func AfterUnmount(dir string, before, after []Mount, a Answer, err error) Verdict {
	left := below(dir, after)
	accepted := err == nil && a.Status != Failure
	v := Verdict{Outcome: volume.Done, Unsupported: err == nil && a.Status == NotSupported}
	v.Because = volume.Because{Reason: volume.ReasonFlexUnmounted, Message: "nothing is mounted at " + dir}
	switch {
	case len(left) == 0 && isUnfinished(err) && len(below(dir, before)) > 0:
		// It may have been about to detach: it gets one more try, which begins
		// with nothing mounted.
		v.Outcome = volume.Unknown
		v.Because = volume.Because{
			Reason: volume.ReasonFlexUnmountFailed, Message: "nothing is mounted at " + dir + ", but " + messageOf(a, err),
		}
	case len(left) == 0 && !accepted:
		v.Because.Message += ", though " + messageOf(a, err)
	case len(left) > 0 && accepted:
		v.Undo = lastFirst(left)
		v.Because.Message = messageOf(a, err) + "; the host unmounts " + strings.Join(v.Undo, ", ")
	case len(left) > 0:
		v.Outcome = volume.Failed
		if isUnfinished(err) {
			v.Outcome = volume.Unknown
		}
		v.Because = volume.Because{
			Reason:  volume.ReasonFlexUnmountFailed,
			Message: messageOf(a, err) + "; still mounted: " + strings.Join(lastFirst(left), ", "),
		}
	}
	return v
}

// isUnfinished says whether the driver's work may be half done or continue.
func isUnfinished(err error) bool {
	return errors.Is(err, ErrTimeLimit) || errors.Is(err, ErrKilled)
}

// messageOf returns the driver's message, or the error of the call.
func messageOf(a Answer, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case a.Status == Success:
		return "the driver says that it is done"
	case a.Status == NotSupported:
		return "the driver leaves it to the host (Not supported)"
	case a.Message == "":
		return "the driver failed and gives no reason"
	default:
		return "the driver failed: " + a.Message
	}
}

// below returns the mounts at dir or below it.
func below(dir string, mounts []Mount) []Mount {
	return slices.DeleteFunc(slices.Clone(mounts), func(m Mount) bool {
		return m.Path != dir && !strings.HasPrefix(m.Path, strings.TrimSuffix(dir, "/")+"/")
	})
}

// lastFirst returns the paths in an order in which they can be unmounted: the last mount has
// nothing on it, and may hide others.
func lastFirst(mounts []Mount) []string {
	var paths []string
	for _, m := range slices.Backward(mounts) {
		paths = append(paths, m.Path)
	}
	return paths
}
