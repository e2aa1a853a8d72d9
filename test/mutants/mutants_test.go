package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMutants tries the changes of a small module: a change that its test covers is
// killed, one that it does not cover is reported with its place.
func TestMutants(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "made.go", "made_test.go"} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(filepath.Join("testdata", "survivors.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o := options{dir: dir, parallel: 2, out: &out, bounds: []bound{
		{"example.org/made", "", 10}, {"example.org/made", "made.go", 100}, {"example.org/none", "", 100},
	}}
	err = run(t.Context(), o, []string{"./..."})
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	if err == nil || !strings.HasPrefix(err.Error(), "below the bound: example.org/made/made.go ") ||
		strings.Contains(err.Error(), ", example") {
		t.Errorf("ends with: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 3 {
		t.Errorf("the tree was touched: %v, %v", left, err)
	}
}

// TestFailingTests: tests that fail anyway notice nothing.
func TestFailingTests(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.org/red\n\ngo 1.26\n",
		"a.go":   "package red\n\nfunc one() int { return 1 }\n",
		"a_test.go": "package red\n\nimport \"testing\"\n\nfunc TestOne(t *testing.T) {\n\tif one() != 2 " +
			"{\n\t\tt.Fatal(\"one is not two\")\n\t}\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := run(context.Background(), options{dir: dir, parallel: 1, out: &bytes.Buffer{}}, []string{"."})
	if err == nil || !strings.Contains(err.Error(), "one is not two") {
		t.Errorf("ends with: %v", err)
	}
}
