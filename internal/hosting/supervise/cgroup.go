package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
)

// cgroupParent is the name of the directory of all supervisors' cgroups. It is below the root of the hierarchy and so
// outside of the cgroup of this process, which systemd may kill as a whole.
const cgroupParent = "volplane.drivers"

// errNoCgroup says that there is no hierarchy in which this process can create cgroups.
var errNoCgroup = errors.New("no cgroup v2 is mounted writable")

// findCgroups returns the directory of the cgroups of all programs of a supervisor's directory. Supervisors of other
// directories have another one, because their programs may have the same names.
func findCgroups(state string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(state, &st); err != nil {
		return "", &fs.PathError{Op: "look at", Path: state, Err: err}
	}
	root, err := mount.CgroupRoot()
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", errNoCgroup, err)
	case root == "":
		return "", errNoCgroup
	}
	return filepath.Join(root, cgroupParent, fmt.Sprintf("%x-%x", st.Dev, st.Ino)), nil
}

// group is the cgroup of a program, a directory. Each start of the program has a cgroup in it, named by its number: so
// the kernel distinguishes what the last start has left from what earlier ones have.
type group string

// starts returns the numbers of the starts whose cgroups exist, sorted.
func (g group) starts() ([]int, error) {
	entries, err := os.ReadDir(string(g))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (g group) start(n int) string { return filepath.Join(string(g), strconv.Itoa(n)) }

// last returns the directory of the last start's cgroup, or "".
func (g group) last() string {
	starts, err := g.starts()
	if err != nil || len(starts) == 0 {
		return ""
	}
	return g.start(starts[len(starts)-1])
}

// next makes the cgroup of the next start, and removes those of starts that have left nothing.
func (g group) next() (string, error) {
	if g == "" {
		return "", errNoCgroup
	}
	starts, err := g.starts()
	if err != nil {
		return "", err
	}
	for _, n := range starts {
		if !populated(g.start(n)) {
			_ = removeCgroup(g.start(n)) // it is tried again at the next start
		}
	}
	dir := g.start(nextStart(starts))
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as all directories there
		return "", err
	}
	// Where the hierarchy has the memory controller, the kernel counts in each cgroup what it has killed for memory.
	all := filepath.Dir(string(g))
	for _, above := range []string{filepath.Dir(all), all, string(g)} {
		_ = put(above, "cgroup.subtree_control", "+memory")
	}
	return dir, nil
}

// enter moves a process into a cgroup.
func enter(dir string, pid int) error { return put(dir, "cgroup.procs", strconv.Itoa(pid)) }

// put writes to a file of a cgroup; it creates none.
func put(dir, file, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// counter returns a number from a file of a cgroup with lines of a key and a number.
func counter(dir, file, key string) (int, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(data) {
		if fields := bytes.Fields(line); len(fields) == 2 && string(fields[0]) == key {
			return strconv.Atoi(string(fields[1]))
		}
	}
	return 0, fmt.Errorf("%s of %s has no %s", file, dir, key)
}

// populated says whether processes live in a cgroup or below it.
func populated(dir string) bool {
	n, err := counter(dir, "cgroup.events", "populated")
	return dir != "" && err == nil && n > 0
}

// outOfMemory says whether the kernel has killed a process of a cgroup because there was no memory left.
func outOfMemory(dir string) bool {
	n, err := counter(dir, "memory.events", "oom_kill")
	return dir != "" && err == nil && n > 0
}

// emptied returns when no process lives in a cgroup, or with the error of ctx.
func (ws *watches) emptied(ctx context.Context, dir string) error {
	w := ws.watch()
	defer w.close()
	for {
		w.set(unix.IN_MODIFY, filepath.Join(dir, "cgroup.events"))
		if !populated(dir) {
			return nil
		}
		if err := w.next(ctx); err != nil {
			return err
		}
	}
}

// processesOf returns the processes in a cgroup and below it.
func processesOf(dir string) []int {
	var pids []int
	// A cgroup that is removed in the meantime has no processes.
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // as above
		}
		data, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for word := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// signalCgroup sends a signal to all processes of a cgroup.
func signalCgroup(dir string, s syscall.Signal) {
	held := map[int]*process{}
	for _, pid := range processesOf(dir) {
		if p, err := openProcess(pid, 0); err == nil {
			defer p.Close()
			held[pid] = p
		}
	}
	// A process that has come by the pid of one that was listed above is not in the cgroup.
	for _, pid := range processesOf(dir) {
		if p := held[pid]; p != nil {
			_ = p.signal(s) // one that cannot be signalled keeps the cgroup populated, which the caller sees
		}
	}
}

// killCgroup kills all processes of a cgroup, and returns when none is left, or with the error of ctx. A cgroup that
// does not exist has none.
func (ws *watches) killCgroup(ctx context.Context, dir string) error {
	if err := put(dir, "cgroup.kill", "1"); err == nil || !populated(dir) {
		return ws.emptied(ctx, dir)
	}
	return killEach(ctx, dir)
}

// killEach does the same before Linux 5.14: processes can be started while others are killed.
func killEach(ctx context.Context, dir string) error {
	const again = 10 * time.Millisecond
	pause := time.NewTicker(again)
	defer pause.Stop()
	for populated(dir) {
		signalCgroup(dir, syscall.SIGKILL)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
	}
	return nil
}

// removeCgroup removes a cgroup without processes, and those below it. It may be repeated.
func removeCgroup(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, dir := range slices.Backward(dirs) {
		if rm := unix.Rmdir(dir); rm != nil && !errors.Is(rm, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", dir, rm)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
