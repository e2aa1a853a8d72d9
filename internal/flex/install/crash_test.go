package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// installerDir in the environment makes the test program an installer that puts
// two versions in turn, until it is killed.
const installerDir = "VOLPLANE_TEST_INSTALLER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(installerDir); dir != "" {
		if err := installInTurn(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func installInTurn(dir string) error {
	o := Options{Name: demo().String(), Dir: filepath.Join(dir, "kubelet", "exec")}
	for i := 0; ; i++ {
		o.Source = filepath.Join(dir, fmt.Sprint(1+i%2))
		if _, err := Upgrade(context.Background(), o); err != nil {
			return err
		}
		if i%8 == 7 {
			if _, err := Rollback(context.Background(), o); err != nil {
				return err
			}
		}
	}
}

// long writes a driver whose answer is at the end of a long script: half of it
// would end with success and without an answer.
func (w *pluginHost) long(version string) {
	w.script(version, "#!/bin/sh\n# version "+version+"\n"+strings.Repeat("true "+version+"\n", 2000)+
		"echo '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\n# end "+version+"\n")
}

// installer starts an installer and returns how it is killed.
func (w *pluginHost) installer() (kill func()) {
	w.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), installerDir+"="+w.dir)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return func() {
		w.Helper()
		_ = cmd.Process.Kill()
		<-ended
		if said.Len() > 0 {
			w.Errorf("the installer said: %s", said.String())
		}
	}
}

// watch reports each step of an installer in the plugin directory.
func (w *pluginHost) watch() *fsnotify.Watcher {
	w.Helper()
	events, err := fsnotify.NewWatcher()
	if err == nil {
		err = errors.Join(events.Add(w.plugins), events.Add(filepath.Dir(w.exe())))
	}
	if err != nil {
		w.Fatal(err)
	}
	return events
}

// wholeVersion says whether a version is one of the two, and complete.
func (w *pluginHost) wholeVersion(path string) bool {
	w.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		w.Fatal(err)
	}
	version := w.versionOf(path)
	return (version == "1" || version == "2") && strings.HasSuffix(string(data), "# end "+version+"\n")
}

// TestKilledAtAnyMoment leaves one whole version, and an installer that puts the
// rest in order (flex.md 3.3).
func TestKilledAtAnyMoment(t *testing.T) {
	w := newPluginHost(t)
	w.long("1")
	w.long("2")
	first := w.options(filepath.Join(w.dir, "1"))
	r, err := Install(t.Context(), first)
	w.want(Installed, r, err)
	const kills = 60
	left := map[string]int{}
	for i := range kills {
		events := w.watch()
		kill := w.installer()
		for range 1 + i + rand.N(4) {
			<-events.Events
		}
		kill()
		if err := events.Close(); err != nil {
			t.Fatal(err)
		}
		left[w.names()]++
		w.afterKill()
	}
	t.Logf("after %d kills there was: %v", kills, left)
}

// afterKill wants one whole version, and an installer to put the rest in order.
func (w *pluginHost) afterKill() {
	w.Helper()
	if info, err := os.Stat(w.exe()); err != nil || info.Mode() != 0o755 || !w.wholeVersion(w.exe()) {
		w.Fatalf("half a driver: version %q, %+v, %v", w.installed(), info, err)
	}
	before := w.installed()
	p, err := open(w.Context(), w.plugins, demo())
	if err == nil {
		err = p.close()
	}
	if err != nil {
		w.Fatal(err)
	}
	switch names := w.names(); names {
	case "example.com~demo":
	case ".example.com~demo.previous example.com~demo":
		if previous := p.beside("previous"); !w.wholeVersion(previous) || w.versionOf(previous) == before {
			w.Fatalf("installed %s, previous %s", before, w.versionOf(previous))
		}
	default:
		w.Fatalf("not put in order: %s", names)
	}
	if w.installed() != before {
		w.Fatalf("installed %s, before %s", w.installed(), before)
	}
}

// TestEveryStepOfRecovery: the states between two steps, each put in order.
func TestEveryStepOfRecovery(t *testing.T) {
	for _, step := range []struct {
		name            string
		make            func(w *pluginHost, beside func(string) string)
		installed, prev string
	}{
		{"half a new one", func(w *pluginHost, beside func(string) string) {
			w.script(strings.TrimPrefix(beside("new"), w.dir), "#!/bin/s")
		}, "2", "1"},
		{"kept, not renamed", func(w *pluginHost, beside func(string) string) {
			if err := os.Link(w.exe(), beside("keep")); err != nil {
				w.Fatal(err)
			}
		}, "2", "1"},
		{"renamed, not kept as previous", func(w *pluginHost, beside func(string) string) {
			if err := os.Link(w.exe(), beside("keep")); err != nil {
				w.Fatal(err)
			}
			if err := os.Rename(w.driver("3"), w.exe()); err != nil {
				w.Fatal(err)
			}
		}, "3", "2"},
	} {
		t.Run(step.name, func(t *testing.T) {
			w := newPluginHost(t)
			for _, version := range []string{"1", "2"} {
				if _, err := w.change(w.options(w.driver(version))).install(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			step.make(w, func(what string) string { return beside(w.plugins, demo(), what) })
			p, err := open(t.Context(), w.plugins, demo())
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			if got, prev := w.installed(), w.versionOf(p.beside("previous")); got != step.installed || prev != step.prev {
				t.Errorf("installed %s, previous %s; want %s, %s", got, prev, step.installed, step.prev)
			}
			if names := w.names(); names != ".example.com~demo.previous example.com~demo" {
				t.Errorf("there is %s", names)
			}
		})
	}
}

// TestFullDisk: a full disk leaves the installed version.
func TestFullDisk(t *testing.T) {
	w := newPluginHost(t)
	if err := os.MkdirAll(w.plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", w.plugins, "tmpfs", 0, "size=64k,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(w.plugins, unix.MNT_DETACH) })
	r, err := Install(t.Context(), w.options(w.driver("1")))
	w.want(Installed, r, err)
	o := w.options(w.script("2", "#!/bin/sh\n# version 2\necho "+
		"'{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\nexit\n"+strings.Repeat("#", 100<<10)))
	if _, err := Upgrade(t.Context(), o); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	if w.installed() != "1" || w.names() != "example.com~demo" {
		t.Errorf("installed %s, there is %s", w.installed(), w.names())
	}
}

// TestInstalledWhileStarted: a process that starts the driver while it is installed in a
// loop always gets a complete one (F-057).
func TestInstalledWhileStarted(t *testing.T) {
	w := newPluginHost(t)
	w.long("1")
	w.long("2")
	r, err := Install(t.Context(), w.options(filepath.Join(w.dir, "1")))
	w.want(Installed, r, err)
	kill := w.installer()
	const starts = 1500
	var total, bad atomic.Int64
	done := make(chan string, 2)
	for range cap(done) {
		go func() {
			first := ""
			for total.Add(1) <= starts {
				out, err := exec.Command(w.exe(), "init").CombinedOutput()
				if err != nil || string(out) != `{"status":"Success","capabilities":{"attach":false}}`+"\n" {
					bad.Add(1)
					first = fmt.Sprintf("%v: %q", err, out)
				}
			}
			done <- first
		}()
	}
	for range cap(done) {
		if first := <-done; first != "" {
			t.Error(first)
		}
	}
	kill()
	t.Logf("%d bad of %d", bad.Load(), starts)
}
