package driver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestProgramOf(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	t.Chdir(dir)
	plugin := filepath.Join(dir, "plugin")
	for path, mode := range map[string]os.FileMode{plugin: 0o755, plugin + ".txt": 0o644} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"plugin", "./plugin", plugin} {
		words := []string{name, "x"}
		if err := programOf(words); err != nil || !slices.Equal(words, []string{plugin, "x"}) {
			t.Errorf("%s: %q, %v", name, words, err)
		}
	}
	for name, want := range map[string]string{
		"absent":       "no program absent is in PATH: install it, or write its path",
		"/absent":      "no such file",
		"./plugin.txt": "permission denied",
		"./":           "directory",
	} {
		if err := programOf([]string{name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
	}
}
