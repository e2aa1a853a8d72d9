package drivertest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/testkit/golden"
)

var errKilled = errors.New("the process was killed")

// kill is how a process ends: before or after one of its steps.
type kill struct {
	// at is the number of the step, counted from 1; 0 is none. done says whether that step is done.
	at   int
	done bool
	// dead says that the process reaches nobody any more.
	dead bool
	n    int
	// check is called after each step, with the steps that were done.
	check func(api *kubetest.API, steps []string)
}

// step counts a write or call, and returns an error if the process is killed at it or was killed before.
func (s *stage) step(what string) (done bool, err error) {
	s.mu.Lock()
	k := &s.killed
	if k.dead {
		s.mu.Unlock()
		return false, errKilled
	}
	if k.n++; k.n == k.at {
		k.dead, err = true, errKilled
	}
	if done = err == nil || k.done; done {
		s.steps = append(s.steps, what)
	}
	steps := s.steps
	s.mu.Unlock()
	if k.check != nil {
		k.check(s.api, steps)
	}
	return done, err
}

// Killed runs a script once for each of its steps, which are writes and calls, and kills the process before or after
// that step; another process begins, and looks at the key again. In the end all objects must be as if no process had
// been killed. The steps that were done are compared with a file; check, called before each step, has what must be
// true at any time.
func Killed(t *testing.T, s Setting, file, script string, check func(t testing.TB, api *kubetest.API, steps []string)) {
	t.Helper()
	var out strings.Builder
	var state string
	var usual []string
	for at := 0; ; at++ {
		last := false
		for _, done := range []bool{false, true} {
			t.Run(fmt.Sprint(at, done), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := &stage{T: t, Setting: s, options: map[string]string{}, notes: newNotes()}
					w.killed = kill{at: at, done: done, check: func(api *kubetest.API, steps []string) { check(t, api, steps) }}
					w.playKilled(script)
					last = at > 0 && w.killed.n < at
					if at == 0 {
						state, usual = w.state(), w.steps
						return
					}
					if diff := cmp.Diff(state, w.state()); diff != "" {
						t.Errorf("objects in the end (-want +got):\n%s", diff)
					}
					if !last {
						fmt.Fprintf(&out, "%s, done %v: %s\n", usual[at-1], done, told(usual, w.steps))
					}
				})
			})
		}
		if last {
			break
		}
	}
	golden.Equal(t, file, out.String())
}

// told tells which steps were done after a kill.
func told(usual, steps []string) string {
	if slices.Equal(usual, steps) {
		return "as usual"
	}
	return strings.Join(steps, ", ")
}

// playKilled runs a script, and begins another process when one was killed.
func (s *stage) playKilled(script string) {
	for line := range strings.SplitSeq(strings.TrimSpace(script), "\n") {
		for range 3 {
			if s.do(line); !strings.HasPrefix(line, "look ") {
				break
			}
			s.killed.dead = false
			s.start()
		}
	}
	for _, life := range s.lives {
		life.Kill()
	}
}

// state returns all known objects as they are in the end.
func (s *stage) state() string {
	var out strings.Builder
	byName := func(a, b object) int { return strings.Compare(a.String(), b.String()) }
	for _, o := range slices.SortedFunc(maps.Keys(s.known), byName) {
		out.WriteString(o.String() + "\n" + strings.Join(s.lasting(nil, s.now(o)), "\n") + "\n")
	}
	return out.String()
}
