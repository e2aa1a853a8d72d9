package tools_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/release/tools"
)

// unpacked returns a directory with the selected files, as the root of an image is.
func unpacked(t *testing.T) string {
	t.Helper()
	dir, root := t.TempDir(), t.TempDir()
	packages, err := tools.Fetch(t.Context(), strings.TrimSpace(run(t, "dpkg", "--print-architecture")), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		if p.Version == "" || len(p.SHA256) != 64 {
			t.Errorf("%+v is incomplete", p)
		}
	}
	files, err := tools.Select(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Write(root); err != nil {
		t.Fatal(err)
	}
	return root
}

// run runs a program and returns what it prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestTools: the selected files are complete: each program runs with nothing else of the machine.
func TestTools(t *testing.T) {
	root := unpacked(t)
	run(t, "mount", "-t", "proc", "proc", filepath.Join(root, "proc"))
	t.Cleanup(func() { run(t, "umount", filepath.Join(root, "proc")) })
	run(t, "truncate", "--size=320M", filepath.Join(root, "image"))
	for _, line := range []string{
		"mkfs.ext4 -q -F /image", "e2fsck -f -p /image", "resize2fs /image", "blkid -p /image",
		"mkfs.xfs -q -f /image", "xfs_growfs -V", "mkfs.btrfs -q -f /image", "btrfstune -m /image",
		"btrfs filesystem show /image", "mount --version", "umount --version",
	} {
		run(t, "env", append([]string{"-i", "PATH=/usr/sbin", "/usr/sbin/chroot", root}, strings.Fields(line)...)...)
	}
}
