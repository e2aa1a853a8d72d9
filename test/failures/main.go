// Command failures reads what `go test -json` prints and tells of each package
// how it ended, as it comes, and at the end of every test that failed or was
// skipped its name, its place and what it said, and nothing else. It ends with 1
// if there was one. The whole output goes to the file that is its argument.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

const (
	// firstLines and lastLines bound what is told of one test.
	firstLines, lastLines = 10, 20
	// maxLine bounds one line, in bytes.
	maxLine = 1000
)

// event is a line of go test -json.
type event struct {
	Action, Package, ImportPath, Test, Output string
}

// test is what is known of a test, or of a package.
type test struct {
	name    string
	skipped bool
	// said are its own lines: messages with their places, and the stack of a
	// panic. What programs log while it runs is none of them.
	said []string
	// message and stack say that the next line may go on with one.
	message, stack bool
}

// report is what is told.
type report struct {
	out, log io.Writer
	tests    map[[2]string]*test
	// bad are the tests and packages that failed or were skipped.
	bad    []*test
	failed bool
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json ./... 2>&1 | failures LOG")
		os.Exit(2)
	}
	log, err := os.Create(os.Args[1])
	if err == nil {
		var failed bool
		failed, err = tell(os.Stdin, os.Stdout, log)
		if err == nil && failed {
			os.Exit(1)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
}

// tell reads events and says whether anything has failed.
func tell(in io.Reader, out, log io.Writer) (failed bool, err error) {
	r := &report{out: out, log: log, tests: map[[2]string]*test{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.take(line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return true, fmt.Errorf("read events: %w", err)
		}
	}
	r.close()
	return r.failed, nil
}

// take reads one line; go itself writes some that are no events.
func (r *report) take(line string) {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil {
		fmt.Fprint(r.out, line)
		fmt.Fprint(r.log, line)
		return
	}
	fmt.Fprint(r.log, e.Output)
	t := r.test(e)
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		t.hear(strings.TrimRight(e.Output, "\n"))
		if e.Test == "" && regexp.MustCompile(`^(ok  |FAIL)\t`).MatchString(e.Output) {
			fmt.Fprint(r.out, e.Output)
		}
	case "fail", "skip", "build-fail":
		t.skipped = e.Action == "skip"
		// A package without tests is skipped, too.
		if !t.skipped || e.Test != "" {
			r.failed = true
			r.bad = append(r.bad, t)
		}
	}
	if e.Action == "pass" {
		delete(r.tests, [2]string{e.Package, e.Test})
	}
}

func (r *report) test(e event) *test {
	key := [2]string{e.Package, e.Test}
	t := r.tests[key]
	if t == nil {
		t = &test{name: strings.TrimSpace(e.Package + e.ImportPath + " " + e.Test)}
		r.tests[key] = t
	}
	return t
}

// hear keeps a line if the test itself has written it.
func (t *test) hear(line string) {
	switch {
	case strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: "):
		t.stack = true
	case strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "exit status "):
		t.stack = false
	case regexp.MustCompile(`^ +[\w.-]+\.go:\d+: `).MatchString(line):
		t.message = true
	case !strings.HasPrefix(line, "        "):
		t.message = false
	}
	if t.message || t.stack {
		t.said = append(t.said, line)
	}
}

// close tells what has failed. A test that failed by its subtests alone has
// nothing to say.
func (r *report) close() {
	for _, t := range r.bad {
		within := slices.ContainsFunc(r.bad, func(o *test) bool {
			return strings.HasPrefix(o.name, t.name+"/") || strings.HasPrefix(o.name, t.name+" ")
		})
		if within && len(t.said) == 0 {
			continue
		}
		word := "FAILED"
		if t.skipped {
			word = "SKIPPED"
		}
		fmt.Fprintf(r.out, "%s %s\n", word, t.name)
		for _, line := range shortened(t.said) {
			fmt.Fprintln(r.out, line)
		}
	}
}

func shortened(lines []string) []string {
	out := slices.Clone(lines)
	if left := len(lines) - firstLines - lastLines; left > 0 {
		out = slices.Concat(lines[:firstLines], []string{fmt.Sprintf("        ... %d lines ...", left)},
			lines[len(lines)-lastLines:])
	}
	for i, line := range out {
		if len(line) > maxLine {
			out[i] = strings.ToValidUTF8(line[:maxLine], "") + "..."
		}
	}
	return out
}
