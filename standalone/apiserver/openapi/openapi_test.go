package openapi_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const generated = "zz_generated.openapi.go"

// TestFresh runs the generator as doc.go of the package above names it.
func TestFresh(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "doc.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := strings.Cut(string(doc), "//go:generate ")
	if !found {
		t.Fatal("doc.go does not say how the descriptions are generated")
	}
	line, _, _ = strings.Cut(line, "\n")
	out := t.TempDir()
	args := strings.Fields(line)
	for i, a := range args {
		if a == "--output-dir" {
			args[i+1] = out
		}
	}
	generator := exec.CommandContext(t.Context(), args[0], args[1:]...)
	generator.Dir = ".."
	if said, err := generator.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, said)
	}
	want, err := os.ReadFile(filepath.Join(out, generated))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(generated)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: run go generate ./apiserver in standalone/", generated)
	}
}
