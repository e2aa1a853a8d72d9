package doctor

import (
	"os"
	"slices"
	"strings"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/workshop/finding"
)

// namesPersons: a problem says who acts next, and a failure which hosts it breaks.
func namesPersons(t *testing.T, r Report) {
	t.Helper()
	for _, f := range r.Findings {
		person, _, _ := strings.Cut(f.Next, ": ")
		known := []finding.Person{finding.Author, decide.PodAuthor, finding.Administrator}
		if named := slices.Contains(known, finding.Person(person)); named == (f.Level == finding.Pass) {
			t.Errorf("next of %s %s: %q", f.Level, f.Check, f.Next)
		}
		if hurts := len(f.Breaks) > 0 || f.Check == "secrets"; (f.Level == finding.Fail) != hurts && f.Level != finding.Pass {
			t.Errorf("%s %s breaks %v", f.Level, f.Check, f.Breaks)
		}
	}
}

// worksWith says where a driver with a fault works: everywhere if it is only warned of, and nowhere
// if it is not in one of the lists.
func worksWith(name string, f fault) decide.Works {
	kubernetesBreaks := []string{
		"capabilities null", "noise on standard error", "noise on standard output", "two answers", "another spelling",
		"success with code 1", "noise with each unmount", "unmount that does nothing", "unmount that fails after it",
		"no status", "files in it", "fails and is mounted", "a daemon on the pipe", "noise with the filesystem",
		"detach by its own name only",
		"detach by its own name, silently", "attached never", "unmounts no device",
	}
	volplaneBreaks := []string{
		"a name that leads upwards", "two names", "attached is a word", "attached is python", "the size is a text",
		"the size is negative", "the size has a point", "the size is of another unit", "it cannot grow", "it grows once",
		"it grows by a difference",
	}
	switch {
	case name == "mount elsewhere":
		// Its unmount does not look there.
		return decide.Works{Volplane: true}
	case name == "mount beside":
		return decide.Works{}
	case f.level == finding.Warn, f.check == "secrets":
		return decide.Works{Kubernetes: true, Volplane: true}
	case slices.Contains(kubernetesBreaks, name):
		return decide.Works{Volplane: true}
	case slices.Contains(volplaneBreaks, name):
		return decide.Works{Kubernetes: true}
	}
	return decide.Works{}
}

// TestNotJudged: what no host does counts for nothing.
func TestNotJudged(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fault{
		"attaching succeeds": {part: "before", text: `case $1 in getvolumename|isattached|waitforattach) exit 3 ;; esac`},
		"JSON read by the letter": {
			part: "before", text: `case $1$3 in mount*'"kubernetes.io/readwrite":"'*) ;; mount*) fail "JSON" ;; esac`,
		},
		"a pod is needed": {
			part: "before", text: `case $1$3 in mount*pod1*|mount*pod2*|mount*pod3*) ;; mount*) fail "pod" ;; esac`,
		},
		"a directory is needed": {part: "before", text: `[ "$1" != unmount ] || [ -d "$2" ] || fail "no directory"`},
		"noise where something is mounted": {
			part: "before", text: `[ "$1" != mount ] || ! mountpoint -q "$2" || { echo mounted >&2; ` + success + `; }`,
		},
	} {
		p := sound()
		p[f.part] = f.text
		r, _, err := examined(t, p.script(), nil)
		if err != nil || r.Level != finding.Pass {
			t.Errorf("%s: %v\n%s", name, err, listed(r))
		}
	}
}

// TestFirstErrors: a file that cannot be started is reported with the cause, and nothing is called.
func TestFirstErrors(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"#!/bin/sh\r\necho\r\n":            "format: its first line ends with a carriage return",
		"#!/usr/bin/env nothing-like-this": "format: its first line does not name an interpreter",
		"#!/opt/nothing\n":                 "interpreter: its interpreter /opt/nothing is not on this host",
		"echo hello\n":                     "format: it is neither a script",
		"\x7fELF nothing":                  "format: its ELF header is broken",
		"":                                 "file: it has 0 bytes",
		"\xef\xbb\xbf#!/bin/sh\n":          "format: a byte order mark",
	} {
		r, _, err := examined(t, script, nil)
		if err != nil || r.Level != finding.Fail || r.Calls != 0 || *r.Works != (decide.Works{}) ||
			!strings.Contains(listed(r), "fail "+want) {
			t.Errorf("%q: %v, want %s\n%s", script, err, want, listed(r))
		}
	}
}

// TestMode: the mode bits count, because root may read and execute every file.
func TestMode(t *testing.T) {
	t.Parallel()
	for mode, want := range map[os.FileMode]string{
		0o644: "fail file: its mode is 0644: it may not be executed", 0o655: "warn file: its mode is 0655",
		0o355: "warn file: its mode is 0355",
	} {
		r, _, err := examined(t, sound().script(), func(d *Doctor) {
			if err := os.Chmod(d.Path, mode); err != nil {
				t.Fatal(err)
			}
		})
		if err != nil || !strings.Contains(listed(r), want) || (r.Calls == 0) != (mode == 0o644) {
			t.Errorf("%o: %v\n%s", mode, err, listed(r))
		}
	}
}
