package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// scratchPrefix is the prefix of the name of each scratch directory.
const scratchPrefix = "volplane-doctor-"

// markOf returns the environment variable of all processes that the examination in a scratch
// directory starts.
func markOf(root string) string { return "VOLPLANE_DOCTOR=" + filepath.Base(root) }

// Errors of lockScratch.
var (
	errRuns  = errors.New("an examination runs there")
	errNotIt = errors.New("it is no scratch directory")
)

// makeScratch creates and locks a scratch directory. The kernel unlocks it when this process ends,
// however it ends: an unlocked one is of a killed examination.
func makeScratch(parent *os.File) (root string, lock *os.File, err error) {
	const tries = 100
	for range tries {
		if root, err = os.MkdirTemp(parent.Name(), scratchPrefix); err != nil {
			return "", nil, err
		}
		// Another examination may have removed the directory before it was locked.
		if lock, err = lockScratch(parent, filepath.Base(root)); !errors.Is(err, errRuns) && !errors.Is(err, unix.ENOENT) {
			if err != nil {
				err = errors.Join(err, os.Remove(root))
			}
			return root, lock, err
		}
	}
	return "", nil, err
}

// lockScratch locks a scratch directory. The error is errRuns if another examination has it locked,
// errNotIt if no examination can have created it, for example because it is a link, and EXDEV if
// something is mounted on it.
func lockScratch(parent *os.File, name string) (*os.File, error) {
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
	lock := os.NewFile(uintptr(fd), filepath.Join(parent.Name(), name))
	if err := locked(parent, lock, name); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func locked(parent, lock *os.File, name string) error {
	var above, has, is unix.Stat_t
	if err := errors.Join(unix.Fstat(int(parent.Fd()), &above), unix.Fstat(int(lock.Fd()), &has)); err != nil {
		return err
	}
	const private = unix.S_IFDIR | 0o700
	if has.Mode != private || int(has.Uid) != os.Geteuid() || has.Dev != above.Dev {
		return errNotIt
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
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

// cleanUpKilled removes what killed examinations have left, and adds a finding for each.
func (x *exam) cleanUpKilled(ctx context.Context, parent *os.File) error {
	names, err := parent.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	pattern := regexp.MustCompile("^" + scratchPrefix + "[0-9]+$")
	for _, name := range names {
		if !pattern.MatchString(name) {
			continue
		}
		root := filepath.Join(parent.Name(), name)
		mounts := len(within(x.table(), root))
		lock, err := lockScratch(parent, name)
		if errors.Is(err, errRuns) || errors.Is(err, errNotIt) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			dead := &exam{root: root, mark: markOf(root), lock: lock}
			err = dead.cleanUp(ctx)
		}
		x.add(leftoverFinding(root, mounts, err))
	}
	return nil
}

// leftoverFinding returns the finding about a killed examination's directory.
func leftoverFinding(root string, mounts int, err error) decide.Finding {
	f := decide.Finding{Check: "leftover-examination", Level: decide.Pass, Path: root}
	f.Message = fmt.Sprintf("an earlier examination was killed; its directory is taken away (mounts in it: %d)", mounts)
	if err != nil {
		f.Level, f.Next = decide.Warn, "unmount what is mounted there, and remove it"
		f.Message = fmt.Sprintf("an earlier examination was killed, and its directory cannot be taken away: %v", err)
	}
	return f
}
