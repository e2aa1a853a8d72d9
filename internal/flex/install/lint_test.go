package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/workshop/finding"
)

const good = "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\n"

// TestLint finds each of the things that make a kubelet loop, or a host refuse
// (flex.md 1.5, 3.3).
func TestLint(t *testing.T) {
	for name, c := range map[string]struct {
		make func(dir string) error
		want string
	}{
		"all is well":      {func(string) error { return nil }, ""},
		"stray file":       {func(d string) error { return os.WriteFile(d+"/NOTES", nil, 0o644) }, "stray fail NOTES"},
		"dot file":         {func(d string) error { return os.WriteFile(d+"/.notes", nil, 0o644) }, ""},
		"previous version": {func(d string) error { return os.WriteFile(d+"/.a~b.previous", nil, 0o644) }, ""},
		"dot directory":    {func(d string) error { return os.Mkdir(d+"/.stage", 0o755) }, "dot-directory fail .stage"},
		"killed installer": {
			func(d string) error { return os.WriteFile(d+"/.a~b.new", nil, 0o644) }, "unfinished warn .a~b.new",
		},
		"kept copy": {
			func(d string) error { return os.WriteFile(d+"/.a~b.removed", nil, 0o644) }, "kept warn .a~b.removed",
		},
		"link to a directory": {
			func(d string) error { return os.Symlink("example.com~demo", d+"/example.com~other") },
			"link warn example.com~other; empty fail example.com~other",
		},
		"link to nothing": {
			func(d string) error { return os.Symlink("nothing", d+"/example.com~other") }, "link fail example.com~other",
		},
		"no executable": {
			func(d string) error { return os.Mkdir(d+"/example.com~other", 0o755) }, "empty fail example.com~other",
		},
		"two tildes":         {script("a~b~c", "c", good, 0o755), "refused fail a~b~c"},
		"capital vendor":     {script("Example.com~c", "c", good, 0o755), "refused fail Example.com~c"},
		"not executable":     {script("example.com~c", "c", good, 0o644), "refused fail example.com~c"},
		"writable by others": {script("example.com~c", "c", good, 0o777), "refused fail example.com~c"},
		"another name":       {script("example.com~c", "d", good, 0o755), "empty fail example.com~c"},
		"one file more":      {script("example.com~demo", "lib.sh", "", 0o644), "extra warn example.com~demo/lib.sh"},
		"init fails": {
			script("example.com~c", "c", "#!/bin/sh\necho '{\"status\":\"Failure\"}'\nexit 1\n", 0o755),
			"init fail example.com~c/c",
		},
		"no vendor": {script("c", "c", good, 0o755), "name warn c/c"},
		"a tool is missing": {
			script("example.com~c", "c", good+"# jq\nmount.nothing -o x 2>/dev/null || true\n", 0o755),
			"tools warn example.com~c/c",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(script("example.com~demo", "demo", good, 0o755)(dir), c.make(dir)); err != nil {
				t.Fatal(err)
			}
			_, findings, err := Lint(t.Context(), Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range findings {
				if f.Level != finding.Pass {
					rel, err := filepath.Rel(dir, f.Path)
					if err != nil || f.Message == "" || !strings.Contains(f.Next, ": ") {
						t.Errorf("%+v, %v", f, err)
					}
					got = append(got, fmt.Sprintf("%s %s %s", f.Check, f.Level, rel))
				}
			}
			if s := strings.Join(got, "; "); s != c.want {
				t.Errorf("found %q, want %q\n%+v", s, c.want, findings)
			}
		})
	}
	if _, _, err := Lint(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "nothing")}); err == nil {
		t.Error("no directory is no error")
	}
}

// script returns what writes a file in a driver's directory.
func script(dir, file, text string, mode os.FileMode) func(string) error {
	return func(plugins string) error {
		home := filepath.Join(plugins, dir)
		path := filepath.Join(home, file)
		return errors.Join(os.MkdirAll(home, 0o755), os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode))
	}
}
