package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	// searchLimit is the time limit of one search, maxHolders the number of its results.
	searchLimit = 2 * time.Second
	maxHolders  = 5
)

// Holder is a process that keeps a mount in use.
type Holder struct {
	PID int
	// Command is the name of the process's program. The arguments are never read, because they may
	// hold secrets.
	Command string
	// Use says how the process uses the mount.
	Use string
	// Namespace is the process's mount namespace; empty if it is the caller's.
	Namespace string
}

var errSearching = errors.New("another search for processes has not ended yet")

// Search finds the processes that keep mounts in use. One search runs at a time. While a search
// hangs, because a process hangs whose memory map it reads, no other is started. The zero value is
// ready for use.
type Search struct {
	mu    sync.Mutex
	hangs <-chan []Holder
}

// Holders returns processes that use one of the mounts, or have a copy of it in their own mount
// namespace: at most maxHolders, and only those that were found in time. It needs root, and sees
// the processes of its own PID namespace.
func (s *Search) Holders(ctx context.Context, points []Point) ([]Holder, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangs != nil {
		select {
		case <-s.hangs:
			s.hangs = nil
		default:
			return nil, errSearching
		}
	}
	found := make(chan []Holder, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, searchLimit)
		defer cancel()
		found <- newScan(points).holders(ctx)
	}()
	// A search ends a moment after its context.
	late := time.NewTimer(searchLimit + searchLimit/4)
	defer late.Stop()
	select {
	case all := <-found:
		return all, nil
	case <-late.C:
		s.hangs = found
		return nil, fmt.Errorf("search for the processes that use a mount: %w", context.DeadlineExceeded)
	}
}

// scan is one search over all processes.
type scan struct {
	points []Point
	pids   []int
	// own is the caller's mount namespace. held holds those that have a copy of a mount.
	own    string
	copies map[string]bool
	// mounts holds the ids of the mounts that are looked for, and of their copies: mount ids are
	// unique in the kernel.
	mounts map[uint64]bool
}

func newScan(points []Point) *scan {
	s := &scan{points: points, copies: map[string]bool{}, mounts: map[uint64]bool{}}
	s.own = namespaceOf("self")
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			s.pids = append(s.pids, pid)
		}
	}
	slices.Sort(s.pids)
	return s
}

func namespaceOf(process string) string {
	name, _ := os.Readlink("/proc/" + process + "/ns/mnt")
	return name
}

// holders returns first the processes that use a mount, which keeps it from being unmounted, and
// then one process of each namespace that has a copy.
func (s *scan) holders(ctx context.Context) []Holder {
	seen := map[string]bool{}
	for _, pid := range s.pids {
		if ns := namespaceOf(strconv.Itoa(pid)); ns != "" && !seen[ns] && ctx.Err() == nil {
			seen[ns] = true
			s.readMounts(pid, ns)
		}
	}
	var users, copies []Holder
	for _, pid := range s.pids {
		if ctx.Err() != nil || len(users) == maxHolders {
			break
		}
		dir, ns := fmt.Sprint("/proc/", pid), namespaceOf(strconv.Itoa(pid))
		h := Holder{PID: pid, Use: s.useOf(ctx, dir)}
		if ns != s.own {
			h.Namespace = ns
		}
		switch {
		case h.Use != "":
			h.Command = command(dir)
			users = append(users, h)
			delete(s.copies, ns)
		case s.copies[ns]:
			h.Command, h.Use = command(dir), "a copy"
			copies = append(copies, h)
			delete(s.copies, ns)
		}
	}
	all := append(users, copies...)
	return all[:min(len(all), maxHolders)]
}

// readMounts adds the mounts of a namespace that are looked for: in the caller's namespace those at
// the given paths, in others all that show the same filesystem.
func (s *scan) readMounts(pid int, ns string) {
	f, err := os.Open(fmt.Sprint("/proc/", pid, "/mountinfo"))
	if err != nil {
		return
	}
	defer f.Close()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return
	}
	for _, i := range infos {
		is := func(p Point) bool {
			return p.ID == i.ID || ns != s.own && p.Device == fmt.Sprintf("%d:%d", i.Major, i.Minor) && p.Root == i.Root
		}
		if slices.ContainsFunc(s.points, is) {
			s.mounts[uint64(i.ID)] = true
			s.copies[ns] = s.copies[ns] || ns != s.own
		}
	}
}

// useOf returns how a process uses the mounts, or "". It does not access the filesystem itself,
// because its server may have ended.
func (s *scan) useOf(ctx context.Context, dir string) string {
	switch {
	case s.at(dir + "/cwd"):
		return "its working directory"
	case s.at(dir + "/root"):
		return "its root directory"
	case s.anyOf(ctx, dir+"/fdinfo", s.opened):
		return "an open file"
	case s.anyOf(ctx, dir+"/map_files", s.at):
		return "a mapped file"
	}
	return ""
}

func (s *scan) anyOf(ctx context.Context, dir string, is func(path string) bool) bool {
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer d.Close()
	for ctx.Err() == nil {
		names, err := d.Readdirnames(256)
		if slices.ContainsFunc(names, func(name string) bool { return is(dir + "/" + name) }) {
			return true
		}
		if err != nil {
			return false
		}
	}
	return false
}

// at says whether the target of a link in /proc is on one of the mounts.
func (s *scan) at(link string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	return err == nil && st.Mask&unix.STATX_MNT_ID != 0 && s.mounts[st.Mnt_id]
}

// opened says whether an open file is on one of the mounts, according to its fdinfo.
func (s *scan) opened(info string) bool {
	text, err := os.ReadFile(info)
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(text, []byte("mnt_id:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	id, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 10, 64)
	return ok && err == nil && s.mounts[id]
}

// command returns the name of a process's program. The process may have set the name itself.
func command(dir string) string {
	text, _ := os.ReadFile(dir + "/comm")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(strings.TrimSuffix(string(text), "\n"), "?"))
}
