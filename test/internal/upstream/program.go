package upstream

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"volplane.dev/volplane/test/internal/plane"
)

// Program is a running program of Kubernetes, which the Makefile builds.
type Program struct {
	// Kill kills it and waits for its end, and End asks it to stop. They may be repeated.
	Kill, End func()
	// Ended is closed when it has ended.
	Ended chan struct{}
	Log   *LastWords
}

// Start runs a program until the test ends, even if the test is killed. A program that exits on its own fails the test,
// and a failed test shows the output of its programs.
func Start(t *testing.T, name string, args ...string) *Program {
	t.Helper()
	path := plane.Bin("kubernetes")
	if strings.HasPrefix(filepath.Base(name), "csi-") || name == "volplane" || name == "snapshot-controller" {
		path = plane.Bin(name)
	}
	cmd := exec.Command(path, args...)
	cmd.Args[0] = name
	p := &Program{Ended: make(chan struct{}), Log: &LastWords{}}
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The signal is sent when the thread ends that started the program.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(p.Ended)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	by := func(signal syscall.Signal) func() {
		return func() {
			once.Do(func() {
				select {
				case <-p.Ended:
					t.Errorf("%s ended by itself: %v", name, cmd.ProcessState)
				default:
					_ = cmd.Process.Signal(signal)
					<-p.Ended
				}
			})
		}
	}
	p.Kill, p.End = by(syscall.SIGKILL), by(syscall.SIGTERM)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.Log)
		}
	})
	return p
}

// LastWords keeps the end of a program's output.
type LastWords struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *LastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text.Len() > 1<<16 {
		l.text.Reset()
	}
	return l.text.Write(p)
}

func (l *LastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
