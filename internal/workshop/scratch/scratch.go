package scratch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/workshop/finding"
)

// prefix is the prefix of the name of each scratch directory.
const prefix = "volplane-doctor-"

// cleanLimit is the time limit for taking away what killed examinations have left.
const cleanLimit = 30 * time.Second

// Dir is a scratch directory.
type Dir struct {
	// Root is its path, without symbolic links.
	Root string
	// Mark is an environment variable (NAME=VALUE). Who starts a process of the driver gives it the variable, and
	// Processes finds it by that, and all that it has started.
	Mark string
	// lock is the open directory.
	lock *os.File
}

// Errors of lock.
var (
	errRuns  = errors.New("an examination runs there")
	errNotIt = errors.New("it is not a scratch directory")
)

// Make takes away what killed examinations have left in a directory, and makes a scratch directory in it. The findings
// are about what they have left; there are none about those that still run.
func Make(ctx context.Context, in string) (*Dir, []finding.Finding, error) {
	// The mount table has paths without symbolic links.
	in, err := filepath.EvalSymlinks(in)
	if err != nil {
		return nil, nil, err
	}
	parent, err := os.Open(in)
	if err != nil {
		return nil, nil, err
	}
	defer parent.Close()
	clean, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	left, err := cleanUpKilled(clean, parent)
	if err != nil {
		return nil, left, err
	}
	d, err := makeIn(parent)
	return d, left, err
}

// makeIn creates and locks a scratch directory.
func makeIn(parent *os.File) (*Dir, error) {
	const tries = 100
	var last error
	for range tries {
		root, err := os.MkdirTemp(parent.Name(), prefix)
		if err != nil {
			return nil, err
		}
		// Another examination may have removed the directory before it was locked.
		f, err := lock(parent, filepath.Base(root))
		if err == nil {
			return dirOf(root, f), nil
		}
		last = err
		if !errors.Is(err, errRuns) && !errors.Is(err, unix.ENOENT) {
			return nil, errors.Join(err, os.Remove(root))
		}
	}
	return nil, last
}

func dirOf(root string, f *os.File) *Dir {
	return &Dir{Root: root, Mark: "VOLPLANE_DOCTOR=" + filepath.Base(root), lock: f}
}

// lock locks a scratch directory. The error is errRuns if another examination has it locked, errNotIt if no examination
// can have created it, for example because it is a link, and EXDEV if something is mounted on it.
func lock(parent *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH,
	})
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, errNotIt
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(parent.Name(), name))
	if err := lockOpen(parent, f, name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func lockOpen(parent, f *os.File, name string) error {
	var above, has, is unix.Stat_t
	if err := errors.Join(unix.Fstat(int(parent.Fd()), &above), unix.Fstat(int(f.Fd()), &has)); err != nil {
		return err
	}
	const private = unix.S_IFDIR | 0o700
	if has.Mode != private || int(has.Uid) != os.Geteuid() || has.Dev != above.Dev {
		return errNotIt
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return errRuns
	} else if err != nil {
		return err
	}
	// The previous holder of the lock may have removed the directory.
	err := unix.Fstatat(int(parent.Fd()), name, &is, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && is.Ino != has.Ino {
		err = errRuns
	}
	return err
}

// cleanUpKilled removes what killed examinations have left, and returns a finding for each.
func cleanUpKilled(ctx context.Context, parent *os.File) ([]finding.Finding, error) {
	names, err := parent.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	pattern := regexp.MustCompile("^" + prefix + "[0-9]+$")
	var left []finding.Finding
	for _, name := range names {
		if !pattern.MatchString(name) {
			continue
		}
		root := filepath.Join(parent.Name(), name)
		mounts, err := Mounts(root)
		if err != nil {
			return left, err
		}
		f, err := lock(parent, name)
		if errors.Is(err, errRuns) || errors.Is(err, errNotIt) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = dirOf(root, f).CleanUp(ctx)
		}
		left = append(left, leftover(root, len(mounts), err))
	}
	return left, nil
}

// leftover returns the finding about a killed examination's directory.
func leftover(root string, mounts int, err error) finding.Finding {
	f := finding.Finding{Check: "leftover-examination", Level: finding.Pass, Path: root}
	f.Message = fmt.Sprintf("an earlier examination was killed; its directory is removed (mounts in it: %d)", mounts)
	if err != nil {
		f.Level, f.Next = finding.Warn, finding.Administrator.Should("unmount what is mounted there, and remove it")
		f.Message = fmt.Sprintf("an earlier examination was killed, and its directory cannot be removed: %v", err)
	}
	return f
}

// CleanUp kills the driver's processes, unmounts all that is mounted in the directory, detaches the loop devices over
// files in it, and removes it. The directory is unlocked then, whether that succeeded or not.
func (d *Dir) CleanUp(ctx context.Context) error {
	defer d.lock.Close()
	if err := d.EndProcesses(ctx); err != nil {
		return err
	}
	if err := UnmountBelow(d.Root); err != nil {
		return err
	}
	if err := detachLoops(d.Root); err != nil {
		return err
	}
	if err := RemoveTree(d.Root); err != nil {
		return fmt.Errorf("remove the scratch directory: %w", err)
	}
	return nil
}

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
