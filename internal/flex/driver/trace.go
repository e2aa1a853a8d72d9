package driver

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable"
)

// Each call has a trace file while it runs. A trace file that exists at the start of a host process
// is of a call whose host process was killed: the kernel has ended the call's leader with it, but
// not the processes which that had started, and they must not run beside the next call. Processes
// that a completed call has left running are not handled here.
//
// A trace must survive this process, but not a reboot, which ends all processes. So it is not
// synced.

// trace is the content of a trace file. It holds no arguments, and so no secret.
type trace struct {
	// Boot is the boot id of the host; the numbers below are valid for this boot only.
	Boot string           `json:"boot"`
	Op   decide.Operation `json:"op"`
	// Key is the call's object, as Calls has it. If that is a volume, Volume is its name, and Named
	// the driver's name of it.
	Key    string `json:"key"`
	Volume string `json:"volume,omitempty"`
	Named  string `json:"named,omitempty"`
	// Cgroup is the cgroup of the call's processes, which has no others; "" if there is none.
	Cgroup string `json:"cgroup,omitempty"`
	// Session is the session of the call's processes, which is the pid of their leader, and Started
	// is the leader's start time in clock ticks since boot. They are used without a cgroup. Both
	// are 0 until the leader was started; until then its processes are found by their mark.
	Session int    `json:"session,omitempty"`
	Started uint64 `json:"began,omitempty"`

	// path is the path of the trace file. Its name without extension is the name of the call.
	path string
}

const (
	traceEnding = ".json"
	// maxTrace is the size limit of a trace file that is read, in bytes.
	maxTrace = 64 << 10
	// markKey is the environment variable that has the name of the call.
	markKey = "VOLPLANE_CALL"
)

// name returns the name of the call, mark the environment variable that all its processes inherit.
func (t *trace) name() string { return strings.TrimSuffix(filepath.Base(t.path), traceEnding) }
func (t *trace) mark() string { return markKey + "=" + t.name() }

// openTrace writes the trace file of a call, and creates its cgroup below the driver's. It returns
// nil if no traces are written, or if the operation changes nothing.
func (d *Driver) openTrace(c call) (*trace, error) {
	if d.o.Traces == "" || c.op.Asks() {
		return nil, nil
	}
	boot, err := durable.Boot()
	if err != nil {
		return nil, fmt.Errorf("write down the call: %w", err)
	}
	t := &trace{
		Boot: boot, Op: c.op, Key: d.Name.String() + " " + c.key, path: filepath.Join(d.o.Traces, rand.Text()+traceEnding),
	}
	if named, is := strings.CutPrefix(c.key, "volume "); is {
		t.Volume, t.Named = c.volume, named
	}
	if d.o.Cgroup != "" {
		t.Cgroup = filepath.Join(d.o.Cgroup, cgroupPrefix(d.o.Traces)+t.name())
	}
	if err := os.MkdirAll(d.o.Traces, 0o700); err != nil {
		return nil, fmt.Errorf("write down the call: %w", err)
	}
	if err := t.write(); err != nil {
		return nil, fmt.Errorf("write down the call: %w", err)
	}
	if t.Cgroup != "" {
		if err := os.Mkdir(t.Cgroup, 0o755); err != nil { //nolint:gosec // as all directories there
			return t, t.withoutCgroup()
		}
	}
	return t, nil
}

// withoutCgroup records that the call has no cgroup of its own.
func (t *trace) withoutCgroup() error {
	if t == nil || t.Cgroup == "" {
		return nil
	}
	_ = unix.Rmdir(t.Cgroup)
	t.Cgroup = ""
	if err := t.write(); err != nil {
		return fmt.Errorf("write down the call: %w", err)
	}
	return nil
}

// setLeader records the pid of the call's leader.
func (t *trace) setLeader(pid int) {
	if t == nil || t.Cgroup != "" {
		return
	}
	// If the process cannot be read, its mark must suffice.
	if p, ok := processOf(pid); ok {
		t.Session, t.Started = pid, p.started
		_ = t.write()
	}
}

// write writes the trace file. A reader finds the old or the new content, unless the host crashes.
func (t *trace) write() error {
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if err := os.WriteFile(t.path+durable.Draft, data, 0o600); err != nil {
		return errors.Join(err, os.RemoveAll(t.path+durable.Draft))
	}
	return os.Rename(t.path+durable.Draft, t.path)
}

// close removes the trace file of a call that has ended. Processes that the call has left running
// stay in its cgroup, which is removed after they have ended.
func (t *trace) close() {
	if t == nil {
		return
	}
	_ = os.Remove(t.path)
	if t.Cgroup != "" {
		// This also removes the cgroups of earlier calls whose daemons this call has ended.
		SweepCgroups(filepath.Dir(t.Cgroup), filepath.Dir(t.path))
	}
}

// cgroupPrefix returns the prefix of the cgroups of calls with traces in a directory: other host
// processes may use the same parent.
func cgroupPrefix(traces string) string {
	sum := sha256.Sum256([]byte(traces))
	return hex.EncodeToString(sum[:4]) + "-"
}

// SweepCgroups removes the empty cgroups of ended calls. It may be repeated.
func SweepCgroups(cgroup, traces string) {
	entries, err := os.ReadDir(cgroup)
	if err != nil {
		return
	}
	for _, e := range entries {
		name, ours := strings.CutPrefix(e.Name(), cgroupPrefix(traces))
		if !ours || !e.IsDir() {
			continue
		}
		if _, err := os.Lstat(filepath.Join(traces, name+traceEnding)); errors.Is(err, fs.ErrNotExist) {
			_ = unix.Rmdir(filepath.Join(cgroup, e.Name()))
		}
	}
}

// readTraces returns the unfinished calls with a trace in a directory. Calls of an earlier boot
// have ended; a call with an incomplete trace never started.
func readTraces(dir string) ([]*trace, error) {
	boot, err := durable.Boot()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []*trace
	for _, e := range entries {
		t := &trace{path: filepath.Join(dir, e.Name())}
		err := durable.ReadJSON(t.path, maxTrace, t)
		if err == nil && t.Boot == boot && t.Key != "" && strings.HasSuffix(e.Name(), traceEnding) {
			all = append(all, t)
			continue
		}
		if err := os.RemoveAll(t.path); err != nil {
			return nil, err
		}
	}
	return all, nil
}
