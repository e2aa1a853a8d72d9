package shell

import (
	"os"
	"path/filepath"
	"testing"
)

// TestKubeconfigThatIsRead: umount(8) receives the file that was read, even if the environment named it.
func TestKubeconfigThatIsRead(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"one", "two", "admin.kubeconfig"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct{ flag, env, want string }{
		{"", "one", path("one")},
		{"", path("none") + ":" + path("one"), path("one")},
		{"", "one:two", ""},
		{"two", "one", path("two")},
		{"", "", path("admin.kubeconfig")},
	} {
		t.Setenv("KUBECONFIG", c.env)
		f := Flags{Kubeconfig: c.flag, DataDir: dir, Named: func() bool { return false }}
		if got := f.File(); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
