package objects

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestManifestFiles: a directory has the files of its own in the order of their names, and with -R those below; a link
// to a directory is not followed.
func TestManifestFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, path := range []string{"d/b.yaml", "d/a.json", "d/x.txt", "d/sub/c.yml", "d/sub/deep/d.yaml"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("sub", "d/loop"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from      string
		recursive bool
		want      string
	}{
		{"d", false, "d/a.json d/b.yaml"},
		{"d/", true, "d/a.json d/b.yaml d/sub/c.yml d/sub/deep/d.yaml"},
		{"d/x.txt", true, "d/x.txt"},
	} {
		files, err := manifestFiles(c.from, c.recursive)
		if got := strings.Join(files, " "); err != nil || got != c.want {
			t.Errorf("%s, %t: %s, %v", c.from, c.recursive, got, err)
		}
	}
}
