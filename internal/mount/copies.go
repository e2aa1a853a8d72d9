package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// hostPIDs is the name of the PID namespace of the host, a constant of the kernel.
const hostPIDs = "pid:[4026531836]"

// Copies are places of filesystems that are mounted in more than one way.
type Copies []site

// Of says whether the filesystem of a mount, or a part of it, is among them.
func (c Copies) Of(p Point) bool {
	return slices.ContainsFunc(c, func(s site) bool { return s.device == p.Device && isBelow(s.path, p.Root) })
}

// FindCopies returns what is mounted at paths that are not ours, in the caller's mount namespace and in those of
// other processes, such as containers. A mount at a path of ours is not a copy in another namespace either: a process
// that has it has copied the view of the whole host. Neither is a mount that the kernel unmounts together with a
// mount of ours, such as that of a service that shares the host's mounts. An error means that there may be copies
// that were not found.
func FindCopies(ctx context.Context, ours func(path string) bool) (Copies, error) {
	if pids, err := os.Readlink("/proc/self/ns/pid"); err != nil {
		return nil, fmt.Errorf("find copies of mounts: %w", err)
	} else if pids != hostPIDs {
		return nil, fmt.Errorf("find copies of mounts: this process does not see the host's processes, but those of %s", pids)
	}
	own, err := readTable()
	if err != nil {
		return nil, err
	}
	others, err := otherTables(ctx, own)
	if err != nil {
		return nil, fmt.Errorf("find copies of mounts: %w", err)
	}
	found, goes := Copies{}, map[seat]bool{}
	c := newCovers(own)
	for _, i := range own {
		if !ours(i.Mountpoint) {
			found = append(found, placeOf(i))
		} else if parent := c.byID[i.Parent]; parent != nil {
			goes[seatOf(i, parent, peersOf(parent))] = true
		}
	}
	c = newCovers(others)
	for _, i := range others {
		if !ours(i.Mountpoint) && !c.goesWith(i, goes) {
			found = append(found, placeOf(i))
		}
	}
	return found, nil
}

func placeOf(i *mountinfo.Info) site {
	return site{fmt.Sprintf("%d:%d", i.Major, i.Minor), i.Root}
}

// seat is the place of a mount within the mounts of a peer group.
type seat struct {
	what        site
	peers, path string
}

func seatOf(i, parent *mountinfo.Info, peers string) seat {
	return seat{placeOf(i), peers, filepath.Join(parent.Root, offset(i, parent))}
}

// goesWith says whether the kernel unmounts a mount together with one of the given ones: its parent is their peer, or
// receives their propagation.
func (c covers) goesWith(i *mountinfo.Info, goes map[seat]bool) bool {
	parent := c.byID[i.Parent]
	if parent == nil {
		return false
	}
	for f := range strings.FieldsSeq(parent.Optional) {
		relation, group, _ := strings.Cut(f, ":")
		if (relation == "shared" || relation == "master") && goes[seatOf(i, parent, group)] {
			return true
		}
	}
	return false
}

// view is what some processes see: a mount namespace, from their root directory.
type view struct{ ns, root string }

// otherTables returns the mounts of all mount namespaces but the caller's, whose mounts are own. A process that has
// changed its root directory does not see all of its namespace.
func otherTables(ctx context.Context, own []*mountinfo.Info) ([]*mountinfo.Info, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	ids := map[int]bool{}
	for _, i := range own {
		ids[i.ID] = true
	}
	var out []*mountinfo.Info
	seen, part := map[view]bool{{namespaceOf("self"), "/"}: true}, map[string]string{}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for _, task := range tasksOf(e.Name()) {
			v, infos, err := tableOf(task, seen)
			switch {
			case isGone(err):
				continue
			case err != nil:
				return nil, fmt.Errorf("mounts of process %s: %w", task, err)
			}
			seen[v], part[v.ns] = true, task
			out = append(out, infos...)
		}
	}
	for ns, task := range part {
		if seen[view{ns, "/"}] {
			continue
		}
		infos, err := wholeTable(task)
		if err != nil {
			return nil, fmt.Errorf("mounts of process %s outside of its root directory: %w", task, err)
		}
		out = append(out, infos...)
	}
	return slices.DeleteFunc(out, func(i *mountinfo.Info) bool { return ids[i.ID] }), nil
}

// tasksOf returns the threads of a process, as folders of /proc: docker copies files in a thread that has mounts of its
// own.
func tasksOf(pid string) []string {
	threads, _ := os.ReadDir("/proc/" + pid + "/task") // a process that has exited has no threads
	out := make([]string, 0, len(threads))
	for _, t := range threads {
		out = append(out, pid+"/task/"+t.Name())
	}
	return out
}

// wholeTable returns all mounts of a task's mount namespace, whatever its root directory is.
func wholeTable(task string) ([]*mountinfo.Info, error) {
	ns, err := os.Open("/proc/" + task + "/ns/mnt")
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	var infos []*mountinfo.Info
	OnThreadOfItsOwn(func() { infos, err = enterAndRead(int(ns.Fd()), int(proc.Fd())) })
	return infos, err
}

// OnThreadOfItsOwn runs f in a thread that ends with it, so f may leave the namespaces of the process. The first thread
// is left out: Go cannot end it, and /proc/self would show that thread's view from then on.
func OnThreadOfItsOwn(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// While this goroutine occupies the first thread, no other can get it.
			OnThreadOfItsOwn(f)
			runtime.UnlockOSThread()
			return
		}
		f() // and the thread is never unlocked
	}()
	<-done
}

// enterAndRead moves the calling thread into a mount namespace, where it sees all mounts, and reads them from the
// directory proc, because the namespace may have no /proc.
func enterAndRead(ns, proc int) ([]*mountinfo.Info, error) {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
		return nil, os.NewSyscallError("setns", err)
	}
	fd, err := unix.Openat(proc, "thread-self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	f := os.NewFile(uintptr(fd), "mountinfo")
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, nil)
}

// tableOf returns the view of a process and, unless that view was seen before, its mounts.
func tableOf(pid string, seen map[view]bool) (v view, infos []*mountinfo.Info, err error) {
	if v, err = viewOf(pid); err != nil || seen[v] && v.ns != "" {
		return v, nil, err
	}
	f, err := os.Open("/proc/" + pid + "/mountinfo")
	if err != nil {
		return v, nil, err
	}
	defer f.Close()
	if infos, err = mountinfo.GetMountsFromReader(f, nil); err == nil {
		if now, _ := viewOf(pid); now != v {
			// The process has ended or changed its namespace, and these are the mounts of another one.
			err = fs.ErrNotExist
		}
	}
	return v, infos, err
}

// viewOf returns the mount namespace and the root of a process. The namespace is empty if the caller may not know it:
// then the process has capabilities that the caller lacks, but its mounts can be read.
func viewOf(pid string) (v view, err error) {
	if v.ns, err = os.Readlink("/proc/" + pid + "/ns/mnt"); err == nil {
		v.root, err = os.Readlink("/proc/" + pid + "/root")
	}
	if errors.Is(err, fs.ErrPermission) {
		return view{root: "/"}, nil
	}
	return v, err
}

// isGone says whether a process has ended, or is about to and has no mounts any more.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}

// Inside returns a function for FindCopies: the paths in and below some directories are ours.
func Inside(dirs ...string) func(path string) bool {
	return func(path string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return isBelow(path, strings.TrimSuffix(dir, "/")) })
	}
}
