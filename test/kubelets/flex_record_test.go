package kubelets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// recorder is one of the example drivers, which records its arguments and its answers. A volume with the option daemon
// has a program that lives as long as the mount, as filesystems in user space do.
const recorder = `#!/bin/sh
export LOFS_POOL=@POOL SCRATCH_SHARES=@POOL
began=$(date +%s%N) forked=$(cut -d' ' -f22 /proc/$$/stat) code=0
answer=$(@EXAMPLE "$@") || code=$?
case $1$3 in
mount*'"daemon"'*)
	setsid sleep 1000 &
	echo $! >@POOL/daemon-@NAME
	;;
unmount)
	if [ -e @POOL/daemon-@NAME ]; then
		kill "$(cat @POOL/daemon-@NAME)"
		rm @POOL/daemon-@NAME
	fi
	;;
esac
line=$(jq -cn --arg driver @NAME --argjson began "$began" --argjson forked "$forked" --arg answer "$answer" '{$driver, $began, $forked, $answer, args: $ARGS.positional}' --args -- "$@")
printf '%s\n' "$line" >>@RECORD
printf '%s\n' "$answer"
exit $code
`

// flexCall is a call that a recorder has logged.
type flexCall struct {
	Driver string
	// Began is when it read the clock, in nanoseconds, Forked when its process was created,
	// in hundredths of a second since the machine's start.
	Began, Forked int64
	Args          []string
	Answer        string
}

func (j *flexJudge) record(side string) string { return filepath.Join(j.dir, side+".calls") }

// install installs a driver for a side, in one step.
func (j *flexJudge) install(side, name string) {
	j.t.Helper()
	example, err := filepath.Abs(filepath.Join("../../examples/flex", name, name))
	j.must(err)
	text := strings.NewReplacer("@POOL", j.pool(), "@EXAMPLE", example, "@NAME", name, "@RECORD",
		j.record(side)).Replace(recorder)
	dir, draft := filepath.Join(j.dir, side, "example.com~"+name), filepath.Join(j.dir, "draft")
	j.must(os.MkdirAll(dir, 0o755))
	j.must(os.WriteFile(draft, []byte(text), 0o755)) //nolint:gosec // it is to be run
	j.must(os.Rename(draft, filepath.Join(dir, name)))
}

// calls returns all calls of a side.
func (j *flexJudge) calls(side string) []flexCall {
	j.t.Helper()
	data, err := os.ReadFile(j.record(side))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		j.t.Fatal(err)
	}
	var all []flexCall
	for line := range bytes.Lines(data) {
		var c flexCall
		if err := json.Unmarshal(line, &c); err != nil {
			j.t.Fatalf("%s: %v", line, err)
		}
		all = append(all, c)
	}
	return all
}

// called says whether a side was called with an operation for a volume.
func (j *flexJudge) called(side, op, volume string) bool {
	return slices.ContainsFunc(j.calls(side), func(c flexCall) bool {
		return c.Args[0] == op && strings.Contains(strings.Join(c.Args, " "), volume)
	})
}

// seenBy is a side as its calls are recorded.
type seenBy struct {
	name string
	// uids are those of the Pods, by guest.
	uids  map[string]string
	names *strings.Replacer
	// pods are what Pods have seen.
	pods []string
}

// line returns a call in words that are the same for both sides.
func (s seenBy) line(c flexCall) string {
	args := strings.Join(c.Args, " ")
	if strings.Contains(c.Answer, "Not supported") {
		// Hosts remember that, so it may be recorded for any volume.
		return fmt.Sprintf("%s: %s answered Not supported", c.Driver, c.Args[0])
	}
	whose := c.Driver
	for _, g := range flexPodCases() {
		if slices.ContainsFunc(g.owns(s.name, s.uids[g.name]),
			func(word string) bool { return strings.Contains(args, word) }) {
			whose = g.name
		}
	}
	text := s.names.Replace(args + " answered " + c.Answer)
	return whose + ": " + regexp.MustCompile(`/dev/loop[0-9]+`).ReplaceAllString(text, "DEVICE")
}

// lines returns the calls of a side's drivers, each call once, in the order of the first ones: how often a host queries
// a name, or the state of a volume, depends on the time. At the end are the Pods' observations.
func (j *flexJudge) lines(s seenBy) []string {
	j.t.Helper()
	var out []string
	for _, c := range j.calls(s.name) {
		if l := s.line(c); !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return append(out, s.pods...)
}

// neverTwice reports a driver that was called to mount where it had mounted (H5).
func neverTwice(t *testing.T, calls []flexCall) {
	t.Helper()
	mounted := map[string]bool{}
	for _, c := range calls {
		switch c.Args[0] {
		case "mount", "mountdevice":
			if mounted[c.Args[1]] {
				t.Errorf("%s was called to mount at %s twice", c.Driver, c.Args[1])
			}
			mounted[c.Args[1]] = strings.Contains(c.Answer, "Success")
		case "unmount", "unmountdevice":
			mounted[c.Args[1]] = false
		}
	}
}

// sameOrder reports a volume for which both sides have made the same calls in another order.
func sameOrder(t *testing.T, ours, theirs []string) {
	t.Helper()
	whose := func(lines, others []string) map[string][]string {
		out := map[string][]string{}
		for _, l := range lines {
			if name, call, _ := strings.Cut(l, ": "); slices.Contains(others, l) {
				out[name] = append(out[name], call)
			}
		}
		return out
	}
	is, has := whose(ours, theirs), whose(theirs, ours)
	for name := range is {
		if name != "lofs" && name != "scratch" && !slices.Equal(is[name], has[name]) {
			t.Errorf("%s: ours are in the order\n%s\ntheirs\n%s", name, strings.Join(is[name], "\n"),
				strings.Join(has[name], "\n"))
		}
	}
}

// spaced reports a driver whose capabilities were queried twice within a second (H15).
func spaced(t *testing.T, calls []flexCall) {
	t.Helper()
	last := map[string]int64{}
	for _, c := range calls {
		if c.Args[0] != "init" {
			continue
		}
		// It takes time to create a process.
		between := time.Duration(c.Forked-last[c.Driver]) * time.Second / 100
		if _, again := last[c.Driver]; again && between < 500*time.Millisecond {
			t.Errorf("%s had an init again after %v", c.Driver, between)
		}
		last[c.Driver] = c.Forked
	}
}
