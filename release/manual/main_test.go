package main

import (
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// program has a verb, which has one below it.
const program = `#!/bin/sh
case "$*" in
--help) printf 'Does things.\n\nCommands:\n  help   Say this\n  do     Do a thing\n\nFlags:\n  --dry-run\n' ;;
"do --help") printf 'Do a thing\n\nCommands:\n  all  Do all\n' ;;
"do all --help") printf 'Do all\n\n.dot and \\ backslash\n' ;;
*) exit 1 ;;
esac
`

// TestManual: each verb has a page, which names its parents and children, and which a formatter prints unchanged.
func TestManual(t *testing.T) {
	dir := t.TempDir()
	at, out := filepath.Join(dir, "program"), filepath.Join(dir, "out")
	if err := os.WriteFile(at, []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time over the pages of the first
		if err := run(t.Context(), []string{"-out", out, "-version", "v1", at}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	all, err := os.ReadDir(out)
	for _, e := range all {
		names = append(names, e.Name())
	}
	want := []string{"program-do-all.8.gz", "program-do.8.gz", "program.8.gz"}
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("the pages are %v, want %v, error %v", names, want, err)
	}
	for name, want := range map[string][]string{
		"program":        {"program - Does things\n", "--dry-run", "program-do(8)", "volplane v1"},
		"program-do":     {"program-do - Do a thing", "program(8), program-do-all(8)"},
		"program-do-all": {"program-do-all - Do all", ".dot and \\ backslash", "program-do(8)"},
	} {
		page := printed(t, filepath.Join(out, name+".8.gz"))
		for _, w := range want {
			if !strings.Contains(page, w) {
				t.Errorf("%s does not say %q:\n%s", name, w, page)
			}
		}
	}
	if err := run(t.Context(), []string{"-out", out, "/bin/false"}); err == nil {
		t.Error("a program without a help has a manual")
	}
}

// printed returns a page as a formatter prints it, without complaints.
func printed(t *testing.T, at string) string {
	t.Helper()
	f, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out, complaints strings.Builder
	cmd := exec.CommandContext(t.Context(), "groff", "-man", "-Tascii", "-P-cbou", "-ww")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = page, &out, &complaints
	if err := cmd.Run(); err != nil || complaints.Len() > 0 {
		rest, _ := io.ReadAll(page)
		t.Errorf("%s: %v %s %s", at, err, &complaints, rest)
	}
	return out.String()
}
