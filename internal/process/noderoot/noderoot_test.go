package noderoot_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/process/noderoot"
)

// TestClaim: the directory changes only while nothing is mounted below the last one, and a query returns the last
// one.
func TestClaim(t *testing.T) {
	data, first, second := t.TempDir(), t.TempDir(), t.TempDir()
	if got := noderoot.Of(data); got != filepath.Join(data, "node") {
		t.Errorf("at first: %s", got)
	}
	claims := func(root, want string) {
		t.Helper()
		err := noderoot.Claim(t.Context(), data, root)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", root, err, want)
		}
		if got := noderoot.Of(data); (got == root) != (want == "") {
			t.Errorf("after %s: %s", root, got)
		}
	}
	claims(first, "")
	claims(first, "")
	volume := filepath.Join(first, "journal", "pv")
	if err := errors.Join(os.Mkdir(filepath.Dir(volume), 0o700), os.WriteFile(volume, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	claims(second, "1 volumes are mounted below "+first)
	claims(first, "")
	if err := errors.Join(os.Remove(volume), os.Mkdir(filepath.Join(first, "journal", "quarantine"), 0o700)); err != nil {
		t.Fatal(err)
	}
	claims(second, "")
	claims(noderoot.Default(data), "")
}

// TestName: the mounts of one node are not taken over by another one, whatever the host is called.
func TestName(t *testing.T) {
	root := filepath.Join(t.TempDir(), "node")
	keeps := func(name, want, wantErr string) {
		t.Helper()
		if err := noderoot.KeepName(root, name); (err == nil) != (wantErr == "") ||
			err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: %v, want %q", name, err, wantErr)
		}
		if got := noderoot.NameOf(root); got != want {
			t.Errorf("after %s: %q, want %q", name, got, want)
		}
	}
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	keeps("one", "one", "")
	keeps("two", "two", "")
	volume := filepath.Join(root, "journal", "pv")
	if err := errors.Join(os.Mkdir(filepath.Dir(volume), 0o700), os.WriteFile(volume, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	keeps("localhost.localdomain", "two", "start as node two (volplane up --name two)")
	keeps("two", "two", "")
	if err := os.Remove(volume); err != nil {
		t.Fatal(err)
	}
	keeps("one", "one", "")
}

// TestKubelet: a kubelet's directory is refused while it runs, and as long as it may run again.
func TestKubelet(t *testing.T) {
	root, err := os.MkdirTemp("/tmp", "nr")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	refuses := func(want string) {
		t.Helper()
		if err := noderoot.Check(t.Context(), root); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	socket, state := filepath.Join(root, "pod-resources", "kubelet.sock"), filepath.Join(root, "cpu_manager_state")
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	refuses("a kubelet is at work in " + root)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(l.Close(), os.WriteFile(state, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	refuses("remove this file")
	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	if err := noderoot.Check(t.Context(), root); err != nil {
		t.Errorf("a socket of nobody: %v", err)
	}
}
