package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"volplane.dev/volplane/internal/durable"
)

// State says what a program does.
type State string

// States of a program.
const (
	// Starting: it was not started yet.
	Starting State = "starting"
	// Running: it runs, or what it left behind when it became a daemon does.
	Running State = "running"
	// BackingOff: it has ended, and is started again at NextAt.
	BackingOff State = "backing off"
	// CannotStart: Message says why. It is tried again when its file changes, and at NextAt.
	CannotStart State = "cannot start"
)

// Record is what is known about a program. It is as old as the last change that a supervisor has seen; a process
// of another boot is not alive.
type Record struct {
	Format int    `json:"format"`
	Name   string `json:"name"`
	// Hash identifies the Program without its secrets.
	Hash  string `json:"hash"`
	State State  `json:"state"`
	// Since is when State began.
	Since time.Time `json:"since"`
	// PID is the main process, 0 if there is none. StartTime is when it started, in ticks of the kernel since boot: a
	// process with the same PID and another StartTime is another one.
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"startTime,omitempty"`
	Boot      string `json:"boot"`
	// Settled says that the main process has run for a while: if it ends from now on, it has not become a daemon.
	Settled bool `json:"settled,omitempty"`
	// Daemonised says that the main process has ended with success and left others, which are the program now.
	Daemonised bool `json:"daemonised,omitempty"`
	// Cgroup is the directory of the cgroup of the last start. If there is none, NoCgroup says why; then what the
	// program leaves behind is neither followed nor ended.
	Cgroup   string `json:"cgroup,omitempty"`
	NoCgroup string `json:"noCgroup,omitempty"`
	// Restarts is how often it has ended without a request.
	Restarts int `json:"restarts"`
	// LastExit is how it ended last, such as "exit status 2", and LastLine the last line that it had printed by then:
	// printable characters only, without secrets of its environment.
	LastExit string `json:"lastExit,omitempty"`
	LastLine string `json:"lastLine,omitempty"`
	// NextAt is when it is started again.
	NextAt time.Time `json:"nextAt,omitzero"`
	// Message says why it cannot start, and what can be done.
	Message string `json:"message,omitempty"`
}

const (
	recordFormat = 1
	maxRecord    = 64 << 10
	recordSuffix = ".json"
)

// ErrDamaged says that a record cannot be read.
var ErrDamaged = errors.New("the record is damaged")

func recordPath(dir, name string) string { return filepath.Join(dir, name+recordSuffix) }

// Read returns the record of a program in a supervisor's directory. Its errors are fs.ErrNotExist if there is none,
// ErrDamaged, durable.ErrNewer, and those of the disk. It may be called while a supervisor works.
func Read(dir, name string) (Record, error) {
	if err := checkName(name); err != nil {
		return Record{}, err
	}
	data, err := durable.ReadFile(recordPath(dir, name), maxRecord+1)
	if err != nil {
		return Record{}, err
	}
	var version struct{ Format int }
	if json.Unmarshal(data, &version) == nil && version.Format > recordFormat {
		return Record{}, fmt.Errorf("%s: %w", recordPath(dir, name), durable.ErrNewer)
	}
	var r Record
	if json.Unmarshal(data, &r) != nil || len(data) > maxRecord || !r.valid(name) {
		return Record{}, fmt.Errorf("%s: %w", recordPath(dir, name), ErrDamaged)
	}
	return r, nil
}

func (r *Record) valid(name string) bool {
	return r.Format >= 1 && r.Name == name && r.PID >= 0 && (r.PID == 0 || r.StartTime > 0)
}

// Lives says whether what a record calls running lives now: the main process, or what it has left as a daemon. It may
// be called while a supervisor works, and where none does. A daemon without a cgroup is believed to live.
func (r Record) Lives() bool {
	boot, err := durable.Boot()
	if err != nil || r.Boot != boot || r.State != Running {
		return false
	}
	if r.Daemonised {
		return r.Cgroup == "" || populated(r.Cgroup)
	}
	p, err := openProcess(r.PID, r.StartTime)
	if err != nil {
		return false
	}
	defer p.Close()
	return !p.ended()
}

// Living returns the processes of a program that live now, each with its number and name, as "4711 (plugin)": the main
// process, and what this and earlier starts have left behind. It may be called as Lives may.
func (r Record) Living() []string {
	var pids []int
	if r.Cgroup != "" {
		pids = processesOf(filepath.Dir(r.Cgroup))
	}
	if boot, err := durable.Boot(); err == nil && r.Boot == boot && r.PID > 0 {
		if p, err := openProcess(r.PID, r.StartTime); err == nil {
			if !p.ended() {
				pids = append(pids, r.PID)
			}
			_ = p.Close() // it was only opened for a check
		}
	}
	slices.Sort(pids)
	var out []string
	for _, pid := range slices.Compact(pids) {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err == nil {
			out = append(out, fmt.Sprintf("%d (%s)", pid, strings.TrimSpace(string(name))))
		}
	}
	return out
}

// Names returns the names of the programs that have a record in a directory, sorted. A directory that does not exist
// has none.
func Names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && checkName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}
