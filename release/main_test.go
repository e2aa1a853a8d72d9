package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEmpty: only files that a release has listed there are removed: a user's directory may have a list of sums, too.
func TestEmpty(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no file":        {nil, ""},
		"a release":      {map[string]string{"a.deb": "", sumsFile: "00  a.deb\n", sumsFile + signed: ""}, ""},
		"others' list":   {map[string]string{"a.iso": "", "letters": "", sumsFile: "00  a.iso\n"}, "letters"},
		"no list":        {map[string]string{"letters": ""}, "letters"},
		"part of a name": {map[string]string{"deb": "", sumsFile: "00  a.deb\n"}, "deb"},
		"an empty list":  {map[string]string{"a.deb": "", sumsFile: ""}, "a.deb"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &release{out: t.TempDir()}
			for file, text := range c.files {
				if err := os.WriteFile(filepath.Join(r.out, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := r.empty()
			left, _ := os.ReadDir(r.out)
			if c.want == "" && (err != nil || len(left) > 0) {
				t.Errorf("%d files are left, error %v", len(left), err)
			}
			refused := err != nil && strings.Contains(err.Error(), " has "+c.want+" in it")
			if c.want != "" && (!refused || len(left) != len(c.files)) {
				t.Errorf("%d files are left, error %v", len(left), err)
			}
		})
	}
}

// TestFailedRelease: a failed release leaves nothing that would prevent the next one.
func TestFailedRelease(t *testing.T) {
	r := &release{root: t.TempDir(), out: filepath.Join(t.TempDir(), "dist"), platforms: []string{"amd64"}}
	if err := r.make(t.Context()); err == nil || !strings.Contains(err.Error(), "programs") {
		t.Fatalf("a release of no source failed with %v", err)
	}
	if err := r.empty(); err != nil {
		t.Error(err)
	}
}
