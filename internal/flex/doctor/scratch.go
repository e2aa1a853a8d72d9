package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
)

// undo is a call that undoes what the driver has done. An unmount is only called if something is
// mounted at or below its directory.
type undo struct {
	op   decide.Operation
	what string
}

// afterwards asks the driver to undo what it has done, and checks what is left then.
func (x *exam) afterwards(ctx context.Context) {
	judged := x.calls
	for _, u := range slices.Backward(x.undo) {
		if u.op == decide.OpDetach {
			x.call(ctx, u.op, u.what, x.node)
		} else if len(within(x.table(), u.what)) > 0 {
			x.call(ctx, u.op, u.what)
		}
	}
	x.calls = judged
	reason := ""
	if pids := x.remaining(ctx); len(pids) > 0 {
		reason = fmt.Sprintf("%d processes of the driver still run when nothing is mounted any more", len(pids))
	}
	x.answer(question{"leftover-processes", decide.Fail, "end in unmount what mount has started", "no process is left"},
		reason)
	reason = ""
	if left := within(x.table(), x.root); len(left) > 0 {
		reason = "something is still mounted at " + left[0].path
	}
	x.answer(question{
		"leftover-mounts", decide.Fail, "unmount in unmount all that mount has mounted", "nothing is left mounted",
	}, reason)
}

// remaining returns the driver's running processes, after giving them a moment to end.
func (x *exam) remaining(ctx context.Context) []int {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	const tries = 50
	for try := 1; ; try++ {
		pids := x.processes()
		if len(pids) == 0 || try == tries {
			return pids
		}
		select {
		case <-ctx.Done():
			return pids
		case <-pause.C:
		}
	}
}

// cleanUp kills the driver's processes, removes the scratch directory with all mounts in it, and
// unlocks it.
func (x *exam) cleanUp(ctx context.Context) error {
	defer x.lock.Close()
	if err := x.endProcesses(ctx); err != nil {
		return err
	}
	if err := x.unmountBelow(x.root); err != nil {
		return err
	}
	if err := removeTree(x.root); err != nil {
		return fmt.Errorf("remove the scratch directory: %w", err)
	}
	return nil
}

// endProcesses kills the driver's processes, which it finds by their mark.
func (x *exam) endProcesses(ctx context.Context) error {
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		pids := x.processes()
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			x.end(pid)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v of the driver do not end: %w", pids, ctx.Err())
		case <-pause.C:
		}
	}
}

// end kills a process, unless its pid was reused by another process.
func (x *exam) end(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if x.marked(pid) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// unmountBelow unmounts everything at and below a directory, the last mount first. A mount that is
// in use is detached lazily.
func (x *exam) unmountBelow(dir string) error {
	const most = 1000
	for range most {
		left := within(x.table(), dir)
		if len(left) == 0 {
			return nil
		}
		var paths []string
		for _, p := range left {
			paths = append(paths, p.path)
		}
		if err := mount.StopPropagation(paths); err != nil {
			return err
		}
		path := left[len(left)-1].path
		err := mount.UnmountTop(path, false)
		if errors.Is(err, unix.EBUSY) {
			err = mount.UnmountTop(path, true)
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("mounts below %s reappear", dir)
}

// removeTree removes a directory with its content. It never enters a mount or follows a link, even
// if one is created meanwhile.
func removeTree(path string) error {
	parent, err := unix.Openat2(unix.AT_FDCWD, filepath.Dir(path), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(parent)
	return removeAt(parent, filepath.Base(path), path)
}

func removeAt(parent int, name, path string) error {
	err := unix.Unlinkat(parent, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeAt(fd, n, filepath.Join(path, n)); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}
