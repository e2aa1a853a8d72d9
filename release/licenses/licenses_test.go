package licenses_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/release/licenses"
)

// TestCollect: the licences of Go's library, of modules and of parts of a module, each text once, and the same when
// called again.
func TestCollect(t *testing.T) {
	t.Setenv("GOFLAGS", "-mod=mod")
	build := []licenses.Build{
		{Dir: "..", Packages: []string{"."}, System: "linux"}, {Dir: "..", Packages: []string{"./krew"}, System: "windows"},
	}
	got, err := licenses.Collect(t.Context(), build)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Go's library go1.", "github.com/google/rpmpack v", "sigs.k8s.io/yaml v", ", LICENSE\n", "Apache License",
		// Parts of modules with a licence of their own.
		"github.com/klauspost/compress v1.20.1, internal/snapref/LICENSE",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q", want)
		}
	}
	if n := strings.Count(got, "Copyright 2009 The Go Authors.\n\nRedistribution"); n > 1 {
		t.Errorf("Go's licence is there %d times", n)
	}
	if strings.Contains(got, "volplane.dev") {
		t.Error("this source is no third party's")
	}
	if again, err := licenses.Collect(t.Context(), build); again != got || err != nil {
		t.Errorf("another time it says something else, error %v", err)
	}
}

// TestWithout: a module without a licence is named.
func TestWithout(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOFLAGS", "-mod=vendor")
	for name, text := range map[string]string{
		"go.mod":                          "module example.com/a\n\ngo 1.26\n\nrequire example.com/b v1.0.0\n",
		"a.go":                            "package a\n\nimport _ \"example.com/b\"\n",
		"vendor/modules.txt":              "# example.com/b v1.0.0\n## explicit; go 1.26\nexample.com/b\n",
		"vendor/example.com/b/b.go":       "package b\n",
		"vendor/example.com/LICENSE-of-a": "not that of b\n",
	} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := licenses.Collect(t.Context(), []licenses.Build{{Dir: dir, Packages: []string{"."}, System: "linux"}})
	if err == nil || !strings.Contains(err.Error(), "example.com/b v1.0.0") {
		t.Errorf("the error is %v", err)
	}
}
