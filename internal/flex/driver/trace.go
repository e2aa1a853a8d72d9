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

// A call is written down before it begins, and struck out when it has ended. What
// is found written down at the start of a host is a call of a host that was
// killed: the kernel ended its leader with that host, but not what this had
// started, which must not go on beside the next call. What calls that ended have
// left behind is nobody's business.
//
// That has to outlive this process, not the machine, which leaves no process
// behind: so it is not synced.

// trace is what is written down of a call. It holds no arguments, so no secret.
type trace struct {
	// Boot is the host's boot that all numbers are of.
	Boot string           `json:"boot"`
	Op   decide.Operation `json:"op"`
	// Key is what it works on, as Calls has it. Volume is set for one that works
	// on a volume which the driver calls Named.
	Key    string `json:"key"`
	Volume string `json:"volume,omitempty"`
	Named  string `json:"named,omitempty"`
	// Cgroup is the call's own, in which all its processes are, and nobody else;
	// "" where there is none.
	Cgroup string `json:"cgroup,omitempty"`
	// Session is where they are without it, which is the number of their leader,
	// and Began when that started, in clock ticks of the boot. They are 0 for a
	// moment when it begins: what it has started by then is known by its mark.
	Session int    `json:"session,omitempty"`
	Began   uint64 `json:"began,omitempty"`

	// path is where it is written down. The name of the file, without its ending,
	// is the call's.
	path string
}

const (
	traceEnding = ".json"
	// maxTrace bounds a trace that is read.
	maxTrace = 64 << 10
	// markKey is the variable in a call's environment that names the call.
	markKey = "VOLPLANE_CALL"
)

// name is the call's own, mark the variable that all its processes inherit.
func (t *trace) name() string { return strings.TrimSuffix(filepath.Base(t.path), traceEnding) }
func (t *trace) mark() string { return markKey + "=" + t.name() }

// begin writes a call down, and makes its cgroup in the driver's. It is nil where
// nothing is written down, and for what only asks.
func (d *Driver) begin(c call) (*trace, error) {
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

// withoutCgroup writes down that the call does without one of its own.
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

// leads adds which process leads the call.
func (t *trace) leads(pid int) {
	if t == nil || t.Cgroup != "" {
		return
	}
	// If that fails, its mark has to do.
	if p, ok := processOf(pid); ok {
		t.Session, t.Began = pid, p.began
		_ = t.write()
	}
}

// write writes it down: whoever reads it finds all of it or what was there
// before, unless the machine ends.
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

// strike strikes out a call that has ended. What it left behind lives on, in a
// cgroup that goes when the last of them has ended.
func (t *trace) strike() {
	if t == nil {
		return
	}
	_ = os.Remove(t.path)
	if t.Cgroup != "" {
		// Also those of calls whose daemons this one has ended.
		SweepCgroups(filepath.Dir(t.Cgroup), filepath.Dir(t.path))
	}
}

// cgroupPrefix begins the names of the cgroups of calls that are written down in
// a directory: other hosts may have theirs in the same cgroup.
func cgroupPrefix(traces string) string {
	sum := sha256.Sum256([]byte(traces))
	return hex.EncodeToString(sum[:4]) + "-"
}

// SweepCgroups removes the cgroups of calls that have ended, but those that
// something lives in.
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

// readTraces returns the calls that are written down in a directory and have not
// ended. Those of an earlier boot have; so have those that were not written down
// wholly, for they did not begin.
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
