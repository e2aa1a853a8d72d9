package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds each wait: a busy machine is slow, and a browser that hangs ends the test.
const patience = 2 * time.Minute

// Browser is a running Chromium.
type Browser struct {
	to io.Writer

	mu      sync.Mutex
	next    int
	replies map[int]chan message
	tabs    map[string]*Tab
}

// message is a protocol message: a reply if it has an id, otherwise an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Start runs a browser without a window until the test ends. Root needs --no-sandbox; the pages are the test's own.
func Start(t *testing.T) *Browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: .ci/deps installs it", err)
	}
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-extensions",
		"--remote-debugging-pipe", "--user-data-dir="+dir, "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir, "TZ=UTC")
	cmd.ExtraFiles = []*os.File{in, out}
	// Its own processes end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var told bytes.Buffer
	cmd.Stderr = &told
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = in.Close(), out.Close()
	b := &Browser{to: to, replies: map[int]chan message{}, tabs: map[string]*Tab{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(from)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_ = to.Close()
		_ = from.Close()
		<-read
		if t.Failed() {
			t.Logf("the browser said: %s", told.Bytes())
		}
	})
	return b
}

// read hands out replies and events until the browser ends.
func (b *Browser) read(from io.Reader) {
	lines := bufio.NewReaderSize(from, 1<<20)
	for {
		data, err := lines.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		reply, tab := b.replies[m.ID], b.tabs[m.Session]
		delete(b.replies, m.ID)
		b.mu.Unlock()
		switch {
		case reply != nil:
			reply <- m
		case tab != nil:
			tab.note(m)
		}
	}
}

// call sends a command and reads its result.
func (b *Browser) call(session, method string, params, result any) error {
	data, err := json.Marshal(params)
	if err != nil {
		return err
	}
	reply := make(chan message, 1)
	b.mu.Lock()
	b.next++
	text, err := json.Marshal(message{ID: b.next, Session: session, Method: method, Params: data})
	if err == nil {
		b.replies[b.next] = reply
		_, err = b.to.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s: no answer within %s", method, patience)
	case m := <-reply:
		if m.Error != nil {
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(m.Result, result)
	}
}
