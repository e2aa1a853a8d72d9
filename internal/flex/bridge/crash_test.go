package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/flex"
	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/mount"
)

// mortalEnv holds the directory of the bridge that a process of this test is to
// be.
const mortalEnv = "VOLPLANE_MORTAL_BRIDGE"

// TestMain runs a bridge instead of the tests if the environment says so: a bridge that
// is killed has to be a process.
func TestMain(m *testing.M) {
	dir, ok := os.LookupEnv(mortalEnv)
	if !ok {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, "bridge:", live(dir))
	os.Exit(1)
}

func live(dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	host := &host.Host{
		Dir: filepath.Join(dir, "plugins"), StateDir: filepath.Join(dir, "root/state"), Log: log,
		Options: func(decide.Name) flex.Options { return flex.Options{} },
	}
	b, err := Open(Options{
		Host: host, Node: nodeName, RootDir: filepath.Join(dir, "root"), SocketDir: filepath.Join(dir, "s"), Log: log,
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- host.Run(ctx) }()
	go func() { ended <- b.Run(ctx) }()
	return <-ended
}

// mortals is a host whose bridge is a process, which is started again whenever it has died.
type mortals struct {
	*bridged
	mu    sync.Mutex
	cmd   *exec.Cmd
	over  bool
	lives int
	ended chan struct{}
}

func newMortals(t *testing.T) *mortals {
	t.Helper()
	m := &mortals{bridged: newBridged(t), ended: make(chan struct{})}
	go m.reign()
	m.eventually(func() error {
		if m.born() == 0 {
			return fmt.Errorf("no bridge was started")
		}
		return nil
	})
	stop := func() {
		m.mu.Lock()
		m.over = true
		m.mu.Unlock()
		m.kill()
		<-m.ended
	}
	m.stop = stop
	return m
}

// reign has one life follow the other.
func (m *mortals) reign() {
	defer close(m.ended)
	for {
		log, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return
		}
		m.mu.Lock()
		m.cmd = exec.Command(os.Args[0]) //nolint:noctx // it is killed by its number
		m.cmd.Env, m.cmd.Stderr = append(os.Environ(), mortalEnv+"="+m.dir), log
		if m.over || m.cmd.Start() != nil {
			m.mu.Unlock()
			_ = log.Close()
			return
		}
		m.lives++
		cmd := m.cmd
		m.mu.Unlock()
		_ = cmd.Wait()
		_ = log.Close()
	}
}

// kill ends the life that is.
func (m *mortals) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil && m.cmd.Process != nil {
		_ = m.cmd.Process.Signal(syscall.SIGKILL)
	}
}

func (m *mortals) born() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lives
}

// insist repeats a call until it succeeds, even if the bridge dies in the meantime; or
// until the bridge has died, if the caller gives up then.
func (m *mortals) insist(call func() error, givesUp bool) (done bool) {
	m.Helper()
	m.eventually(func() error {
		err := call()
		if done = err == nil; givesUp && m.born() > 1 {
			return nil
		}
		return err
	})
	return done
}

// death is when a bridge is killed.
type death struct {
	// op is a call of the driver, before or after which it is killed; else it is
	// the number of a change of the records or of the mounts.
	op                string
	after             bool
	records, mounts   int
	inline, callerEnd bool
}

// round brings a volume to its target and back, with one death on the way.
func (m *mortals) round(d death) (records, mounts int) {
	m.Helper()
	died := filepath.Join(m.dir, "died")
	_ = os.Remove(died)
	m.mu.Lock()
	m.lives = 1
	m.mu.Unlock()
	if d.op != "" {
		m.on(d.op, d.script(died))
		defer m.on(d.op, "")
	}
	v, forth, back := m.route(d)
	seen := m.watch(d)
	if !slices.ContainsFunc(forth, func(call func() error) bool { return !m.insist(call, d.callerEnd) }) {
		m.stands(v, d)
	}
	for _, call := range back {
		m.insist(call, false)
	}
	records, mounts = seen()
	m.nothingLeft(d)
	// The next round begins with the life that follows.
	want := 1
	if _, err := os.Stat(died); err == nil || d.records > 0 && records >= d.records || d.mounts > 0 && mounts >= d.mounts {
		want = 2
	}
	m.eventually(func() error {
		if got := m.born(); got != want {
			return fmt.Errorf("death %+v: %d lives, not %d", d, got, want)
		}
		return nil
	})
	return records, mounts
}

// script is what a driver does at the operation of a death.
func (d death) script(died string) string {
	if d.after {
		return "if mkdir " + died + "; then trap 'kill -9 $PPID' EXIT; fi"
	}
	return "if mkdir " + died + "; then kill -9 $PPID; sleep 60; fi"
}

// route returns a volume and the calls that bring it to its target and back.
func (m *mortals) route(d death) (v *volumeOf, forth, back []func() error) {
	m.Helper()
	conn, options := m.dial(lofs), map[string]string{"file": "data", "size": "32Mi"}
	if d.inline {
		v = m.inline(conn, "1", options)
		return v, []func() error{v.publish}, []func() error{v.unpublish}
	}
	v = m.volume(conn, "pv-1", options)
	return v, []func() error{v.attach, v.stage, v.publish}, []func() error{v.unpublish, v.unstage, v.detach}
}

// stands wants the volume to be at its target, and nothing mounted twice.
func (m *mortals) stands(v *volumeOf, d death) {
	m.Helper()
	marker := filepath.Join(v.target, "marker")
	if _, err := os.Stat(filepath.Join(m.dir, "pool/marked")); err != nil {
		m.ok(os.WriteFile(marker, []byte("kept"), 0o600))
		m.ok(os.WriteFile(filepath.Join(m.dir, "pool/marked"), nil, 0o600))
	}
	if data, err := os.ReadFile(marker); err != nil || string(data) != "kept" {
		m.Errorf("death %+v: the marker is %q, %v", d, data, err)
	}
	points, err := mount.Below(m.dir)
	m.ok(err)
	seen := map[string]bool{}
	for _, p := range points {
		if seen[p.Path] {
			m.Errorf("death %+v: mounted twice: %s", d, p.Path)
		}
		seen[p.Path] = true
	}
}

// nothingLeft wants no mount, device, mark or record.
func (m *mortals) nothingLeft(d death) {
	m.Helper()
	points, err := mount.Below(m.dir)
	m.ok(err)
	for _, p := range points {
		m.Errorf("death %+v: left mounted: %s", d, p.Path)
	}
	// A volume that never was has no file.
	if image := filepath.Join(m.dir, "pool/data.img"); exists(image) {
		m.givenBack(image)
	}
	for _, pattern := range []string{"root/state/volumes/*/*/*", "root/pods/*", "root/plugins/*", "pool/attached/*/*"} {
		if left, _ := filepath.Glob(filepath.Join(m.dir, pattern)); len(left) > 0 {
			m.Errorf("death %+v: left: %v", d, left)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// watch counts the changes of records and mounts, and kills the bridge just
// after the one of its death.
func (m *mortals) watch(d death) (stop func() (records, mounts int)) {
	ctx, cancel := context.WithCancel(context.Background())
	var seen [2]int
	var running sync.WaitGroup
	look := func(n *int, at int, now func() string) {
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for last := now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if is := now(); is != last {
				last = is
				if *n++; *n == at {
					m.kill()
				}
			}
		}
	}
	running.Go(func() {
		look(&seen[0], d.records, func() string {
			files, _ := filepath.Glob(filepath.Join(m.dir, "root/state/volumes/*/*/*.json"))
			text := ""
			for _, f := range files {
				var st unix.Stat_t
				if unix.Stat(f, &st) == nil {
					text += fmt.Sprint(f, st.Ino, st.Mtim.Nano(), " ")
				}
			}
			return text
		})
	})
	running.Go(func() {
		look(&seen[1], d.mounts, func() string {
			points, _ := mount.Below(m.dir)
			return fmt.Sprint(points)
		})
	})
	return func() (int, int) {
		cancel()
		running.Wait()
		return seen[0], seen[1]
	}
}

// deaths returns when a bridge dies, the caller giving up in turn.
func deaths(inline bool, records, mounts int) []death {
	var all []death
	for i, op := range []string{
		"getvolumename", "attach", "waitforattach", "mountdevice", "mount", "unmount", "unmountdevice", "detach",
	} {
		for _, after := range []bool{false, true} {
			all = append(all, death{op: op, after: after, inline: inline, callerEnd: after == (i%2 == 0)})
		}
	}
	for n := 1; n <= records; n++ {
		all = append(all, death{records: n, inline: inline, callerEnd: n%2 == 0})
	}
	for n := 1; n <= mounts; n++ {
		all = append(all, death{mounts: n, inline: inline, callerEnd: n%2 == 1})
	}
	return all
}

// TestBridgeIsKilled before and after each call of a driver, and just after each
// change of its records and of the mounts: the next life brings the volume to
// the same end, nothing is mounted twice and nothing is left.
func TestBridgeIsKilled(t *testing.T) {
	const lanes = 3
	for _, inline := range []bool{false, true} {
		for lane := range lanes {
			t.Run(fmt.Sprintf("inline %t, %d", inline, lane), func(t *testing.T) {
				t.Parallel()
				m := newMortals(t)
				m.install("lofs")
				records, mounts := m.round(death{inline: inline})
				if records == 0 || mounts == 0 {
					t.Errorf("%d changes of records, %d of mounts: nothing was seen", records, mounts)
				}
				for i, d := range deaths(inline, records, mounts) {
					if i%lanes == lane {
						m.round(d)
					}
				}
			})
		}
	}
}

// TestDaemonOutlivesBridge: what a driver leaves running, as those of FUSE do,
// serves on when the bridge is killed, and the next bridge takes the volume away.
func TestDaemonOutlivesBridge(t *testing.T) {
	t.Parallel()
	m := newMortals(t)
	m.install("scratch")
	pidFile := filepath.Join(m.dir, "pid")
	m.on("mount", `sleep 600 & echo $! >`+pidFile)
	v := m.volume(m.dial(scratch), "pv-1", nil)
	begin := time.Now()
	m.insist(v.publish, false)
	if took := time.Since(begin); took > patience {
		t.Errorf("the daemon held the call for %v", took)
	}
	data, err := os.ReadFile(pidFile)
	m.ok(err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	m.ok(err)
	defer func() { _ = unix.Kill(pid, unix.SIGKILL) }()
	m.kill()
	m.eventually(func() error {
		if m.born() < 2 {
			return fmt.Errorf("no other life yet")
		}
		_, err := csi.Dial(t.Context(), m.socket(scratch))
		return err
	})
	if err := unix.Kill(pid, 0); err != nil {
		t.Errorf("the daemon: %v", err)
	}
	m.insist(v.publish, false)
	m.insist(v.unpublish, false)
	m.nothingLeft(death{})
}
