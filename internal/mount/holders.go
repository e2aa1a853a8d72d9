package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// Holder is a process that keeps a mount in use, or the kernel itself.
type Holder struct {
	// PID is 0 for the kernel; Use then says how it uses the mount.
	PID int
	// Command is the name of the process's program. The arguments are never read, because they may hold secrets.
	Command string
	// Use says how the process uses the mount.
	Use string
	// Namespace is the process's mount namespace; empty if it is the caller's.
	Namespace string
}

var errSearching = errors.New("another search for processes has not ended yet")

// Search finds the processes that keep mounts in use. One search runs at a time. While a search hangs, because a
// process hangs whose memory map it reads, no other is started. The zero value is ready for use.
type Search struct {
	mu    sync.Mutex
	hangs <-chan []Holder
}

// Holders returns processes that use one of the mounts, or have a copy of it in their own mount namespace: at most
// maxHolders, and only those that were found in time. It needs root, and sees the processes of its own PID namespace.
func (s *Search) Holders(ctx context.Context, points []Point) ([]Holder, error) {
	return s.run(ctx, points, Point{})
}

// HoldersOf returns processes that keep a block device in use although the caller may see no mount of it: those that
// have the device or a file on it open, and those that have it mounted. Otherwise it is like Holders.
func (s *Search) HoldersOf(ctx context.Context, path string) ([]Holder, error) {
	number, err := DeviceOf(path)
	if err != nil {
		return nil, err
	}
	return s.run(ctx, nil, Point{Device: number, Source: path})
}

func (s *Search) run(ctx context.Context, points []Point, device Point) ([]Holder, error) {
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
		found <- newScan(points, device).holders(ctx)
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
	// device and source are the number and the path of the device that is looked for; empty if only mounts are. Not every
	// filesystem has the number of its device.
	device, source string
	pids           []int
	// own is the caller's mount namespace. held holds those that have a copy of a mount.
	own    string
	copies map[string]bool
	// paths are those of the mounts in the caller's mount namespace.
	paths []string
	// mounts holds the ids of the mounts that are looked for, and of their copies: mount ids are unique in the kernel.
	mounts map[uint64]bool
}

func newScan(points []Point, device Point) *scan {
	s := &scan{
		points: points, device: device.Device, source: device.Source, copies: map[string]bool{}, mounts: map[uint64]bool{},
	}
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

// holders returns first the kernel's own uses of a mount and the processes that use it, which prevent an unmount, and
// then one process of each namespace that has a copy.
func (s *scan) holders(ctx context.Context) []Holder {
	seen := map[string]bool{}
	for _, pid := range s.pids {
		for _, t := range threadsOf(pid) {
			if t.namespace != "" && !seen[t.namespace] && ctx.Err() == nil {
				seen[t.namespace] = true
				s.readMounts(t)
			}
		}
	}
	users, copies := s.kernel(), []Holder(nil)
	for _, pid := range s.pids {
		if ctx.Err() != nil || len(users) >= maxHolders {
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
		default:
			copies = append(copies, s.copiesOf(h)...)
		}
	}
	all := append(users, copies...)
	return all[:min(len(all), maxHolders)]
}

// copiesOf returns a process once for each namespace of its threads that has a copy.
func (s *scan) copiesOf(h Holder) []Holder {
	var out []Holder
	if len(s.copies) == 0 {
		return nil
	}
	for _, t := range threadsOf(h.PID) {
		if s.copies[t.namespace] {
			h.Command, h.Use, h.Namespace = command(fmt.Sprint("/proc/", h.PID)), "a copy", t.namespace
			out = append(out, h)
			delete(s.copies, t.namespace)
		}
	}
	return out
}

// thread is a thread of a process, by its directory in /proc, and its mount namespace.
type thread struct{ dir, namespace string }

// threadsOf returns the threads of a process. Each may have a mount namespace of its own: programs that start
// containers have such threads.
func threadsOf(pid int) []thread {
	dir := fmt.Sprint("/proc/", pid, "/task")
	entries, _ := os.ReadDir(dir)
	out := make([]thread, 0, len(entries))
	for _, e := range entries {
		name, _ := os.Readlink(dir + "/" + e.Name() + "/ns/mnt")
		out = append(out, thread{dir + "/" + e.Name(), name})
	}
	return out
}

// readMounts adds the relevant mounts of a namespace: in the caller's namespace those at the given paths, in others all
// that show the same filesystem; or all mounts of the given device.
func (s *scan) readMounts(t thread) {
	f, err := os.Open(t.dir + "/mountinfo")
	if err != nil {
		return
	}
	defer f.Close()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return
	}
	for _, i := range infos {
		device := fmt.Sprintf("%d:%d", i.Major, i.Minor)
		is := func(p Point) bool {
			return p.ID == i.ID || t.namespace != s.own && p.Device == device && p.Root == i.Root
		}
		ofDevice := s.device != "" && (device == s.device || i.Source == s.source)
		if ofDevice || slices.ContainsFunc(s.points, is) {
			s.add(i, t.namespace)
		}
	}
}

// add adds a mount of a namespace.
func (s *scan) add(i *mountinfo.Info, namespace string) {
	s.mounts[uint64(i.ID)] = true
	if namespace == s.own {
		s.paths = append(s.paths, i.Mountpoint)
		return
	}
	s.copies[namespace] = true
}

// useOf returns how a process uses the mounts, or "". It does not access the filesystem itself,
// because its server may have ended.
func (s *scan) useOf(ctx context.Context, dir string) string {
	switch {
	case s.at(dir + "/cwd"):
		return "its working directory"
	case s.at(dir + "/root"):
		return "its root directory"
	case s.hasOpen(ctx, dir):
		return "an open file"
	case s.anyOf(ctx, dir+"/map_files", s.at):
		return "a mapped file"
	}
	return ""
}

func (s *scan) hasOpen(ctx context.Context, dir string) bool {
	if s.device != "" {
		return s.anyOf(ctx, dir+"/fd", s.at)
	}
	return s.anyOf(ctx, dir+"/fdinfo", s.opened)
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

// at says whether the target of a link in /proc is on one of the mounts or on the device that is looked for, or is that
// device: a mount that was detached while files were open is in no table.
func (s *scan) at(link string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT,
		unix.STATX_TYPE|unix.STATX_MNT_ID, &st)
	switch {
	case err != nil:
		return false
	case st.Mask&unix.STATX_MNT_ID != 0 && s.mounts[st.Mnt_id]:
		return true
	case st.Mode&unix.S_IFMT == unix.S_IFBLK && s.device == fmt.Sprintf("%d:%d", st.Rdev_major, st.Rdev_minor):
		return true
	}
	return s.device != "" && s.device == fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor)
}

// opened says whether an open file is on one of the mounts, according to its fdinfo.
func (s *scan) opened(info string) bool {
	id, err := mountOfFile(info)
	return err == nil && s.mounts[id]
}

// command returns the name of a process's program. The process may have set the name itself.
func command(dir string) string {
	text, _ := os.ReadFile(dir + "/comm")
	return printable(strings.TrimSuffix(string(text), "\n"))
}

// kernel returns the kernel's own uses of the mounts or the device, on behalf of no process that could be ended: loop
// devices over files on them, swap space, and devices built on the device, such as those of LVM.
func (s *scan) kernel() []Holder {
	var out []Holder
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range loops {
		text, _ := os.ReadFile(file)
		if s.uses(strings.TrimSuffix(string(text), "\n")) {
			out = append(out, Holder{Use: "loop device /dev/" + filepath.Base(filepath.Dir(filepath.Dir(file)))})
		}
	}
	swaps, _ := os.ReadFile("/proc/swaps")
	for line := range strings.Lines(string(swaps)) {
		path, _, _ := strings.Cut(line, " ")
		// The kernel writes a blank as \040, for example.
		if path, err := strconv.Unquote(`"` + strings.ReplaceAll(path, `"`, `\"`) + `"`); err == nil && s.uses(path) {
			out = append(out, Holder{Use: "swap space " + printable(path)})
		}
	}
	if s.device != "" {
		made, _ := os.ReadDir("/sys/dev/block/" + s.device + "/holders")
		for _, one := range made {
			out = append(out, Holder{Use: "device /dev/" + one.Name()})
		}
	}
	return out
}

// uses says whether a file that the kernel uses is on one of the mounts, or is the device. Other files are not
// accessed: their filesystem may not answer.
func (s *scan) uses(path string) bool {
	below := func(mount string) bool { return isBelow(path, mount) }
	return (path == s.source || slices.ContainsFunc(s.paths, below)) && s.at(path)
}

// printable replaces characters that a terminal should not receive.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
