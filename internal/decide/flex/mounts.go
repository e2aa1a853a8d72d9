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
	// ID is the kernel's number of the mount.
	ID int
	// Path is where it is mounted.
	Path string
	// Device is "major:minor" of the filesystem.
	Device string
	// Source and Type are what mount was called with.
	Source, Type string
}

// Verdict is what a call of mount, mountdevice, unmount or unmountdevice came to.
type Verdict struct {
	// Outcome is Done, Failed or Unknown.
	Outcome volume.Outcome
	// Unsupported says that the driver leaves the work to the host.
	Unsupported bool
	// Undo are the paths to unmount, in this order, one mount for each entry,
	// before Outcome is true. All are at or below the directory of the call.
	Undo []string
	// Because says why; it may hold the driver's own words and has to be
	// redacted by who knows the secrets.
	Because volume.Because
}

// byDriver says in a Because that the driver is the one to look at.
const byDriver = "driver"

// AfterMount judges mount or mountdevice by the mounts at and below dir before
// and after the call (H1 to H3). err is why there is no answer.
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
	if unfinished(err) {
		v.Outcome = volume.Unknown
	}
	message := said(a, err)
	if len(v.Undo) > 0 {
		// H2: what a failed mount leaves would pass for a mounted volume when it
		// is tried again.
		message += "; what it mounted is taken away: " + strings.Join(v.Undo, ", ")
	}
	v.Because = volume.Because{Reason: reason, Message: message, Next: byDriver}
	return v
}

// Added returns what is mounted at or below dir after, and was not before, in the
// order in which it can be unmounted, one path for each mount.
func Added(dir string, before, after []Mount) []string {
	return lastFirst(slices.DeleteFunc(below(dir, after), func(m Mount) bool { return slices.Contains(before, m) }))
}

// Mounted says whether anything is mounted at or below dir, so that there is
// nothing left to mount (H5), and what.
func Mounted(dir string, now []Mount) (volume.Because, bool) {
	if len(below(dir, now)) == 0 {
		return volume.Because{}, false
	}
	return mounted(dir, below(dir, now)).Because, true
}

// mounted is the verdict when the driver says so.
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

// ByHost says what the host itself has mounted at dir, when the driver left it to
// the host.
func ByHost(dir string, now []Mount) volume.Because {
	if why, done := Mounted(dir, now); done {
		return why
	}
	return volume.Because{
		Reason:  volume.ReasonFlexNothingMounted,
		Message: "there is no device, and the driver leaves it to the host to mount one at " + dir,
	}
}

// AfterUnmount judges unmount or unmountdevice by the mounts at and below dir
// before and after the call (H4). err is why there is no answer.
func AfterUnmount(dir string, before, after []Mount, a Answer, err error) Verdict {
	left := below(dir, after)
	accepted := err == nil && a.Status != Failure
	v := Verdict{Outcome: volume.Done, Unsupported: err == nil && a.Status == NotSupported}
	v.Because = volume.Because{Reason: volume.ReasonFlexUnmounted, Message: "nothing is mounted at " + dir}
	switch {
	case len(left) == 0 && unfinished(err) && len(below(dir, before)) > 0:
		// It may have been about to detach: it gets one more try, which begins
		// with nothing mounted.
		v.Outcome = volume.Unknown
		v.Because = volume.Because{
			Reason: volume.ReasonFlexUnmountFailed, Message: "nothing is mounted at " + dir + ", but " + said(a, err),
			Next: byDriver,
		}
	case len(left) == 0 && !accepted:
		v.Because.Message += ", though " + said(a, err)
	case len(left) > 0 && accepted:
		v.Undo = lastFirst(left)
		v.Because.Message = said(a, err) + "; the host unmounts " + strings.Join(v.Undo, ", ")
	case len(left) > 0:
		v.Outcome = volume.Failed
		if unfinished(err) {
			v.Outcome = volume.Unknown
		}
		v.Because = volume.Because{
			Reason: volume.ReasonFlexUnmountFailed, Next: byDriver,
			Message: said(a, err) + "; still mounted: " + strings.Join(lastFirst(left), ", "),
		}
	}
	return v
}

// unfinished says whether what the driver did may be half done or go on.
func unfinished(err error) bool {
	return errors.Is(err, ErrTimeLimit) || errors.Is(err, ErrKilled)
}

// said tells what came from the driver.
func said(a Answer, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case a.Status == Success:
		return "the driver says that it is done"
	case a.Status == NotSupported:
		return "the driver leaves it to the host (Not supported)"
	case a.Message == "":
		return "the driver failed and says not why"
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

// lastFirst returns the paths in an order in which they can be unmounted: what
// was mounted last is in nobody's way and hides what is below it.
func lastFirst(mounts []Mount) []string {
	var paths []string
	for _, m := range slices.Backward(mounts) {
		paths = append(paths, m.Path)
	}
	return paths
}
