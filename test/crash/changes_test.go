package crash

import (
	"fmt"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
)

// changes counts the changes of an agent's journal and mounts.
type changes struct{ journal, mounts int }

// watch counts the changes, and kills the agent at the change that the death names.
func (h *nodeWorld) watch(p *process, d death) (stop func() changes) {
	end, err := unix.Eventfd(0, unix.EFD_NONBLOCK)
	h.c.must(err)
	var (
		seen    changes
		mu      sync.Mutex
		waiting sync.WaitGroup
	)
	count := func(n *int, at int) {
		mu.Lock()
		defer mu.Unlock()
		if *n++; *n == at {
			_ = p.cmd.Process.Kill()
		}
	}
	waiting.Go(func() { h.watchJournal(end, func() { count(&seen.journal, d.journal) }) })
	waiting.Go(func() { h.watchMounts(end, func() { count(&seen.mounts, d.mounts) }) })
	return func() changes {
		_, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		waiting.Wait()
		_ = unix.Close(end)
		return seen
	}
}

// watchJournal calls changed for each record that is written or deleted.
func (h *nodeWorld) watchJournal(end int, changed func()) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(h.root(), "journal"),
		unix.IN_MOVED_TO|unix.IN_DELETE); err != nil {
		return
	}
	buffer := make([]byte, 4096)
	for wait(end, fd, unix.POLLIN) {
		n, _ := unix.Read(fd, buffer)
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			changed()
			at += unix.SizeofInotifyEvent + int(buffer[at+12]) + int(buffer[at+13])<<8
		}
	}
}

// watchMounts calls changed for each change of the mounts below the node's directory.
func (h *nodeWorld) watchMounts(end int, changed func()) {
	fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	last := ""
	for wait(end, fd, unix.POLLPRI) {
		points, _ := mount.Below(h.Dir)
		if now := fmt.Sprint(points); now != last {
			last = now
			changed()
		}
	}
}

// wait waits for an event of a file, or returns false at the end.
func wait(end, fd int, events int16) bool {
	for {
		//nolint:gosec // descriptors are small
		all := []unix.PollFd{{Fd: int32(end), Events: unix.POLLIN}, {Fd: int32(fd), Events: events}}
		if _, err := unix.Poll(all, -1); err != nil && err != unix.EINTR { //nolint:errorlint // a number
			return false
		}
		if all[0].Revents != 0 {
			return false
		}
		if all[1].Revents != 0 {
			return true
		}
	}
}
