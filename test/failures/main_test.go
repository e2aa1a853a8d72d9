package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// events makes what go test -json prints of lines ACTION|PACKAGE|TEST|OUTPUT.
func events(lines string) string {
	var out strings.Builder
	for line := range strings.Lines(strings.TrimLeft(lines, "\n")) {
		p := strings.SplitN(strings.TrimRight(line, "\n"), "|", 4)
		if len(p) != 4 {
			out.WriteString(line)
			continue
		}
		e := event{Action: p[0], Package: p[1], Test: p[2]}
		if p[3] != "" {
			e.Output = p[3] + "\n"
		}
		data, _ := json.Marshal(e)
		fmt.Fprintf(&out, "%s\n", data)
	}
	return out.String()
}

// TestTell: testdata has events and what is told of them.
func TestTell(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var out, log strings.Builder
			failed, err := tell(strings.NewReader(events(string(a.Files[0].Data))), &out, &log)
			if want := string(a.Comment) == "failed\n"; err != nil || failed != want {
				t.Errorf("failed %v, %v", failed, err)
			}
			if diff := cmp.Diff(string(a.Files[1].Data), out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestLongMessage: beginning and end of what is long, and of a long line.
func TestLongMessage(t *testing.T) {
	var out, log strings.Builder
	said := "output|a|TestX|    x_test.go:1: " + strings.Repeat("y", 2*maxLine) + "\n" +
		strings.Repeat("output|a|TestX|        more\n", 100)
	if failed, err := tell(strings.NewReader(events(said+"fail|a|TestX|\n")), &out, &log); err != nil || !failed {
		t.Error(failed, err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 1+firstLines+1+lastLines+1 || len(lines[1]) != maxLine+3 ||
		lines[1+firstLines] != "        ... 71 lines ..." || strings.Count(log.String(), "more") != 100 {
		t.Errorf("%d lines: %s", len(lines), out.String())
	}
}
