package mount

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// LoopState is the state of a loop device.
type LoopState struct {
	// Note is the text that was left with the device. It ends with it, and no crash parts them.
	Note string
	// AutoClear means that the device is released as soon as no process has it open: it was detached.
	AutoClear bool
	// Claimed means that a filesystem on it is mounted, in any mount namespace, or that a program has it open exclusively.
	Claimed bool
}

// ErrLoopGone says that a loop device has another file than expected, or no file any more.
var ErrLoopGone = errors.New("the loop device has gone")

// Keep prevents the loop device of a file from being released automatically, even if it was detached and is still in
// use, and stores a note with it. decide returns that note; if it returns an error, nothing is changed. All steps use
// one descriptor, and the device cannot be released while that is open.
func (l *Loops) Keep(device, file string, decide func(LoopState) (note string, err error)) error {
	want, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("loop device over %s: %w", file, err)
	}
	f, info, err := openLoop(device, idOf(want))
	if err != nil {
		return err
	}
	defer f.Close()
	state := LoopState{Note: noteOf(info), AutoClear: info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0}
	if state.Claimed, err = claimed(device); err != nil {
		return err
	}
	note, err := decide(state)
	if err != nil || note == state.Note && !state.AutoClear {
		return err
	}
	return keep(f, info, idOf(want), note)
}

// openLoop opens the loop device of a file, and returns its state.
func openLoop(device string, file fileID) (*os.File, *unix.LoopInfo64, error) {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s: %w", device, ErrLoopGone)
	}
	if err != nil {
		return nil, nil, fail("open", device, err)
	}
	info, err := statusOf(f, file)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// keep changes the state of an open loop device, and reads it again.
func keep(f *os.File, info *unix.LoopInfo64, file fileID, note string) error {
	device := f.Name()
	info.Flags &^= unix.LO_FLAGS_AUTOCLEAR
	setNote(info, note)
	if err := unix.IoctlLoopSetStatus64(int(f.Fd()), info); err != nil {
		return fail("keep", device, err)
	}
	info, err := statusOf(f, file)
	if err != nil {
		return err
	}
	if info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0 || noteOf(info) != note {
		return fmt.Errorf("keep %s: the kernel has not done that", device)
	}
	return nil
}

// statusOf returns the state of an open loop device, which must show the whole file.
func statusOf(device *os.File, file fileID) (*unix.LoopInfo64, error) {
	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%s: %w", device.Name(), ErrLoopGone)
	}
	if err != nil {
		return nil, fail("look at", device.Name(), err)
	}
	if (fileID{info.Device, info.Inode}) != file {
		return nil, fmt.Errorf("%s: %w", device.Name(), ErrLoopGone)
	}
	if info.Offset != 0 || info.Sizelimit != 0 {
		return nil, fmt.Errorf("%s shows only a part of its file; detach it", device.Name())
	}
	return info, nil
}

// claimed says whether a block device is open exclusively, as that of a mounted filesystem is by the kernel.
func claimed(device string) (bool, error) {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return true, nil
	}
	if err != nil {
		return false, fail("open", device, err)
	}
	return false, f.Close()
}

func noteOf(info *unix.LoopInfo64) string {
	text, _, _ := bytes.Cut(info.File_name[:], []byte{0})
	return string(text)
}

// setNote sets the name that a loop device gives its file. The kernel shows the path of the file elsewhere, and makes
// no use of the name.
func setNote(info *unix.LoopInfo64, note string) {
	clear(info.File_name[:])
	copy(info.File_name[:len(info.File_name)-1], note)
}
