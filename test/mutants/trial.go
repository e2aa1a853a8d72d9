package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// listed is the output of go list for a package.
type listed struct {
	Dir, ImportPath, Name string
	GoFiles               []string
	TestGoFiles           []string
	XTestGoFiles          []string
}

// relative returns a file's name below the directory.
func (p listed) relative(dir, file string) string {
	whole, err := filepath.Abs(dir)
	if err != nil {
		return filepath.Join(p.Dir, file)
	}
	rel, err := filepath.Rel(whole, filepath.Join(p.Dir, file))
	if err != nil {
		return filepath.Join(p.Dir, file)
	}
	return rel
}

func list(ctx context.Context, dir string, patterns []string) ([]listed, error) {
	c := exec.CommandContext(ctx, "go",
		append([]string{"list", "-json=Dir,ImportPath,Name,GoFiles,TestGoFiles,XTestGoFiles", "--"}, patterns...)...)
	c.Dir, c.Stderr = dir, os.Stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []listed
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// trial is a package with its changes and where they are built.
type trial struct {
	listed
	files   map[string]*changed
	mutants []*mutant
	scratch string
	reached map[int]bool
	limit   time.Duration
}

func prepare(ctx context.Context, p listed, only []string) (*trial, error) {
	m := &trial{listed: p, files: map[string]*changed{}, reached: map[int]bool{}}
	for _, name := range p.GoFiles {
		if only != nil && !slices.Contains(only, name) {
			continue
		}
		source, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return nil, err
		}
		c, err := find(name, source, len(m.mutants))
		if err != nil {
			return nil, err
		}
		m.files[name], m.mutants = c, append(m.mutants, c.mutants...)
	}
	var err error
	m.scratch, err = os.MkdirTemp("", "mutants-")
	return m, errors.Join(err, ctx.Err())
}

func (m *trial) close() { os.RemoveAll(m.scratch) }

func (m *trial) binary() string { return filepath.Join(m.scratch, "test") }

// build builds the tests with all changes in them, without those that do not
// build.
func (m *trial) build(ctx context.Context) error {
	for {
		out, err := m.compile(ctx)
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		refused := false
		for _, at := range regexp.MustCompile(`(?m)([^/\s:]+\.go):(\d+):\d+: `).FindAllStringSubmatch(out, -1) {
			line, err := strconv.Atoi(at[2])
			if c := m.files[at[1]]; c != nil && err == nil {
				refused = c.refuse(line) || refused
			}
		}
		if !refused {
			return fmt.Errorf("build: %w\n%s", err, out)
		}
	}
}

func (m *trial) compile(ctx context.Context) (string, error) {
	overlay := map[string]string{}
	put := func(name string, text []byte) error {
		path := filepath.Join(m.scratch, name)
		overlay[filepath.Join(m.Dir, name)] = path
		return os.WriteFile(path, text, 0o600)
	}
	if err := put("mutants_support.go", []byte("package "+m.Name+"\n"+support)); err != nil {
		return "", err
	}
	for name, c := range m.files {
		if err := put(name, c.text()); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return "", err
	}
	file := filepath.Join(m.scratch, "overlay.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", file, "-gcflags=-e", "-o", m.binary(), ".")
	c.Dir = m.Dir
	out, err := c.CombinedOutput()
	return string(out), err
}

// judge runs the tests without a change, to learn what they cover and how long they take, and then with each covered
// change.
func (m *trial) judge(ctx context.Context, parallel int) error {
	if len(m.TestGoFiles)+len(m.XTestGoFiles) == 0 {
		return nil
	}
	trace := filepath.Join(m.scratch, "reached")
	begun := time.Now()
	if out, err := m.test(ctx, "MUTANT_TRACE="+trace); err != nil {
		return fmt.Errorf("the tests fail without a change: %w\n%s", err, out)
	}
	m.limit = 5*time.Since(begun) + 10*time.Second
	if err := m.readReached(trace); err != nil {
		return err
	}
	places, all := make(chan struct{}, max(1, parallel)), sync.WaitGroup{}
	for _, x := range m.mutants {
		if x.unbuilt || !m.reached[x.number] {
			continue
		}
		places <- struct{}{}
		all.Go(func() {
			_, err := m.test(ctx, fmt.Sprintf("MUTANT=%d", x.number))
			x.killed = err != nil
			<-places
		})
	}
	all.Wait()
	return ctx.Err()
}

func (m *trial) readReached(trace string) error {
	f, err := os.Open(trace)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		n, err := strconv.Atoi(s.Text())
		if err != nil {
			return err
		}
		m.reached[n] = true
	}
	return s.Err()
}

// test runs the tests once. Tests that hang have noticed the change; they are ended with all processes that they have
// started.
func (m *trial) test(ctx context.Context, env string) (string, error) {
	if m.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.limit)
		defer cancel()
	}
	c := exec.CommandContext(ctx, m.binary(), "-test.failfast", "-test.count=1")
	c.Dir, c.Env = m.Dir, append(os.Environ(), env, "UPDATE_GOLDEN=")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 10 * time.Second
	out, err := c.CombinedOutput()
	return string(out), err
}

// tally counts the changes of a file, or of all.
func (m *trial) tally(file string) tally {
	var t tally
	for _, x := range m.mutants {
		if x.unbuilt || file != "" && x.file != file {
			continue
		}
		t.all++
		if x.killed {
			t.killed++
		}
	}
	return t
}

func (m *trial) unbuilt() int {
	n := 0
	for _, x := range m.mutants {
		if x.unbuilt {
			n++
		}
	}
	return n
}

func (m *trial) unreached(x *mutant) string {
	if m.reached[x.number] {
		return ""
	}
	return strings.Repeat(" ", 2) + "(never reached)"
}
