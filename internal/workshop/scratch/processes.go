package scratch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Processes returns the running processes that have the mark in their environment.
func (d *Dir) Processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if d.marked(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// marked says whether a process has the mark.
func (d *Dir) marked(pid int) bool {
	env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	return err == nil && slices.Contains(strings.Split(string(env), "\x00"), d.Mark)
}

// EndProcesses kills the processes that have the mark, and waits until they have ended. It may be repeated.
func (d *Dir) EndProcesses(ctx context.Context) error {
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		pids := d.Processes()
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			d.end(pid)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v of the driver do not end: %w", pids, ctx.Err())
		case <-pause.C:
		}
	}
}

// end kills a process, unless its pid was reused by another process.
func (d *Dir) end(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if d.marked(pid) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
