package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/release/packages"
	"volplane.dev/volplane/release/tree"
)

// sandbox is this machine with a layer of its own over its files, so that packages can be installed.
type sandbox struct {
	t *testing.T
	// root is where the files are, upper has those that were changed.
	root, upper string
}

// callsFile records the calls of systemctl, which hostStub writes there: no systemd runs in the sandbox.
const (
	callsFile = "/var/log/systemctl.calls"
	hostStub  = "#!/bin/sh\necho \"$*\" >>" + callsFile + "\n"
)

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	dir := t.TempDir()
	s := &sandbox{t: t, root: filepath.Join(dir, "root"), upper: filepath.Join(dir, "layer", "upper")}
	for _, d := range []string{s.root, filepath.Join(dir, "layer")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(at string, args ...string) {
		shell(t, "mount", append(args, at)...)
		t.Cleanup(func() { shellAfter(t, "umount", at) })
	}
	// The layer may not be below the directory that it covers.
	mount(filepath.Join(dir, "layer"), "-t", "tmpfs", "tmpfs")
	for _, d := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, "layer", d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount(s.root, "-t", "overlay", "overlay", "-o",
		"lowerdir=/,upperdir="+s.upper+",workdir="+filepath.Join(dir, "layer", "work"))
	mount(filepath.Join(s.root, "proc"), "-t", "proc", "proc")
	mount(filepath.Join(s.root, "dev"), "--bind", "/dev")
	mount(filepath.Join(s.root, "run"), "-t", "tmpfs", "tmpfs")
	s.run("mkdir", "-p", "/run/systemd/system")
	// A test machine may have this file, which keeps packages from starting services.
	s.run("rm", "-f", "/usr/sbin/policy-rc.d")
	s.write("/usr/bin/systemctl", hostStub, 0o755)
	return s
}

// shellAfter runs a program when the context of the test has ended.
func shellAfter(t *testing.T, name string, args ...string) {
	t.Helper()
	if _, err := attempt(withoutEnd(t), nil, name, args...); err != nil {
		t.Error(err)
	}
}

// run runs a program in the sandbox.
func (s *sandbox) run(args ...string) string {
	s.t.Helper()
	return shell(s.t, "chroot", append([]string{s.root}, args...)...)
}

// write replaces a file in the sandbox.
func (s *sandbox) write(name, text string, mode fs.FileMode) {
	s.t.Helper()
	at := filepath.Join(s.root, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		s.t.Fatal(err)
	}
	// The file is replaced, because the old one is a link on some systems.
	if err := os.WriteFile(at+".new", []byte(text), mode); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(at+".new", at); err != nil {
		s.t.Fatal(err)
	}
}

// read returns a file of the sandbox, or "" if it does not exist.
func (s *sandbox) read(name string) string {
	data, err := os.ReadFile(filepath.Join(s.root, name))
	if err != nil {
		return ""
	}
	return string(data)
}

// calls returns with what systemctl was called since the last question.
func (s *sandbox) calls() string {
	s.t.Helper()
	text := s.read(callsFile)
	s.write(callsFile, "", 0o644)
	return text
}

// left returns the files that are in the sandbox and not on the machine, without those of the package systems.
func (s *sandbox) left() []string {
	s.t.Helper()
	var out []string
	known := []string{
		"var/lib/dpkg/", "var/log/", "var/cache/", "var/lib/systemd/", "var/lib/rpm/", "root/.rpmdb/",
		"usr/lib/sysimage/rpm/",
		"usr/bin/systemctl", "usr/sbin/policy-rc.d",
	}
	err := filepath.WalkDir(s.upper, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(s.upper, at)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(rel, k) }) {
			out = append(out, rel)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// older returns a package of an older version, with little in it.
func older(arch string) packages.Package {
	return packages.Package{
		Name: "volplane", Version: "0.0.9", Arch: arch, When: time.Unix(1, 0), Summary: "older", License: "Apache-2.0",
		Maintainer: "nobody <nobody@example.com>", Description: []string{"An older version."},
		Files: tree.Tree{
			tree.Program("usr/bin/volplane", []byte("#!/bin/sh\n")),
			tree.Text("usr/lib/systemd/system/volplane.service", "[Service]\nExecStart=/usr/bin/volplane\n"),
			tree.Directory("etc/volplane"), tree.Directory("etc/volplane/drivers"),
		},
	}
}
