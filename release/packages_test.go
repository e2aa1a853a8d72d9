package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// withoutEnd returns a context that outlives the test, for cleaning up after it.
func withoutEnd(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

// Files of a user of the sandbox, which no package may touch.
const (
	userConfig = "/etc/volplane/drivers/csi.example.com.env"
	userData   = "/var/lib/volplane/pool/data"
	mounted    = "/var/lib/volplane/node/pods/uid/volumes/data/mount"
	wanted     = "/etc/systemd/system/multi-user.target.wants/"
	sockets    = "/etc/systemd/system/sockets.target.wants/"
)

// stopped are the units that end with the package, in their order.
const stopped = "volplane-docker.socket volplane-storage.socket volplane.service volplane-node.service"

// enabled returns the links of `systemctl enable` by their units.
func enabled() map[string]string {
	return map[string]string{
		wanted + "volplane.service":                "volplane.service",
		wanted + "volplane-node.service":           "volplane-node.service",
		wanted + "volplane-driver@example.service": "volplane-driver@.service",
		sockets + "volplane-docker.socket":         "volplane-docker.socket",
		sockets + "volplane-storage.socket":        "volplane-storage.socket",
	}
}

// use turns the sandbox into a host in use: configured, enabled, with data and a mounted volume.
func (s *sandbox) use() {
	s.t.Helper()
	s.write(userConfig, "DRIVER_EXEC=true\n", 0o644)
	s.write(userData, "data\n", 0o600)
	s.run("mkdir", "-p", mounted, wanted, sockets)
	s.run("mount", "-t", "tmpfs", "volume", mounted)
	s.t.Cleanup(func() { shellAfter(s.t, "chroot", s.root, "umount", mounted) })
	for link, unit := range enabled() {
		s.run("ln", "-s", "/usr/lib/systemd/system/"+unit, link)
	}
	s.calls()
}

// inUse requires that the user's files are unchanged.
func (s *sandbox) inUse(after string) {
	s.t.Helper()
	if s.read(userConfig) != "DRIVER_EXEC=true\n" || s.read(userData) != "data\n" {
		s.t.Errorf("%s: a file of the user is gone or another one", after)
	}
	if !strings.Contains(s.read("/proc/self/mountinfo"), mounted) {
		s.t.Errorf("%s: the volume is not mounted any more", after)
	}
}

// called requires that systemctl was called with one thing, and never with anything that changes more.
func (s *sandbox) called(after, want string) {
	s.t.Helper()
	calls := s.calls()
	for _, never := range []string{"enable", "start", "stop", "preset"} {
		for line := range strings.Lines(calls) {
			if slices.Contains(strings.Fields(line), never) && !strings.Contains(line, want) {
				s.t.Errorf("%s: systemctl %s", after, line)
			}
		}
	}
	if !strings.Contains(calls, want) {
		s.t.Errorf("%s: systemctl was not called with %s, but with\n%s", after, want, calls)
	}
}

// onlyUsers requires that only the user's files are left.
func (s *sandbox) onlyUsers(after string) {
	s.t.Helper()
	for _, name := range s.left() {
		if name != strings.TrimPrefix(userConfig, "/") && name != strings.TrimPrefix(userData, "/") {
			s.t.Errorf("%s: %s is left", after, name)
		}
	}
}

// checkPolicy requires that the Debian package follows Debian's policy.
func checkPolicy(t *testing.T, r *release) {
	shell(t, "lintian", "--fail-on", "error", "--tag-display-limit", "0", only(t, r, "*.deb"))
}

// checkDeb installs, upgrades, removes and purges the package of Debian.
func checkDeb(t *testing.T, r *release) {
	deb := only(t, r, "*.deb")
	s := newSandbox(t)
	s.run("mkdir", "-p", "/run/debs")
	old := filepath.Join(s.root, "run/debs/old.deb")
	if err := older(runtime.GOARCH).Deb(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	shell(t, "cp", deb, filepath.Join(s.root, "run/debs/new.deb"))
	out := s.run("dpkg", "--no-triggers", "--install", "/run/debs/old.deb")
	if !strings.Contains(out, "systemctl enable --now") {
		t.Errorf("the package does not say how to start:\n%s", out)
	}
	s.called("install", "daemon-reload")
	s.use()
	s.run("dpkg", "--no-triggers", "--install", "/run/debs/new.deb")
	s.called("upgrade", "try-restart volplane.service volplane-node.service")
	s.inUse("upgrade")
	if out := s.run("/usr/bin/volplane", "version"); !strings.Contains(out, r.version) {
		t.Errorf("the upgrade left version %s", out)
	}
	for _, unit := range []string{
		"volplane.service", "volplane-node.service", "volplane-driver@example.service",
		"volplane-docker.socket", "volplane-storage.socket",
	} {
		if out := s.run("systemd-analyze", "verify", unit); strings.Contains(out, "volplane") {
			t.Errorf("%s: %s", unit, out)
		}
	}
	if out := s.run("/sbin/mount.volplane", "-f", "data", "/mnt"); out != "" {
		t.Errorf("the helper of mount(8) says %q", out)
	}
	if out := s.run("dpkg", "--verify", "volplane"); out != "" {
		t.Errorf("files are not those of the package: %s", out)
	}
	s.run("dpkg", "--no-triggers", "--remove", "volplane")
	s.called("remove", "stop "+stopped)
	s.inUse("remove")
	out = s.run("dpkg", "--no-triggers", "--purge", "volplane")
	s.inUse("purge")
	s.onlyUsers("purge")
	if !strings.Contains(out, "/var/lib/volplane is left") || !strings.Contains(out, "  "+mounted+"\n") {
		t.Errorf("purge does not say what it leaves:\n%s", out)
	}
}

// checkRPM installs, upgrades and removes the package of Fedora.
func checkRPM(t *testing.T, r *release) {
	rpm := only(t, r, "*.rpm")
	scripts := shell(t, "rpm", "-qp", "--scripts", rpm)
	for _, want := range []string{
		"preset volplane.service", "disable --now " + stopped, "try-restart volplane.service volplane-node.service",
	} {
		if !strings.Contains(scripts, want) {
			t.Errorf("no script has %q:\n%s", want, scripts)
		}
	}
	list := strings.Fields(shell(t, "rpm", "-qpl", rpm))
	for _, want := range []string{
		"/usr/bin/volplane", "/usr/bin/volplaned", "/usr/bin/kubectl-why_volume", "/etc/volplane/drivers",
		"/usr/sbin/mount.volplane", "/usr/sbin/umount.volplane",
		"/usr/lib/systemd/system/volplane.service", "/usr/share/man/man8/volplane.8.gz",
	} {
		if !slices.Contains(list, want) {
			t.Errorf("%s is not in the package", want)
		}
	}
	if slices.Contains(list, "/usr/bin") {
		t.Error("the package has a directory of the system")
	}
	s := newSandbox(t)
	if err := older(runtime.GOARCH).RPM(filepath.Join(s.root, "run/old.rpm")); err != nil {
		t.Fatal(err)
	}
	shell(t, "cp", rpm, filepath.Join(s.root, "run/new.rpm"))
	s.run("rpm", "--force-debian", "--nodeps", "--install", "/run/old.rpm")
	s.called("install", "preset volplane.service")
	s.use()
	s.run("rpm", "--force-debian", "--nodeps", "--upgrade", "/run/new.rpm")
	s.called("upgrade", "try-restart volplane.service volplane-node.service")
	s.inUse("upgrade")
	if out := s.run("rpm", "--verify", "--nodeps", "volplane"); out != "" {
		t.Errorf("files are not those of the package: %s", out)
	}
	s.run("rpm", "--erase", "volplane")
	s.called("remove", "disable --now "+stopped)
	s.inUse("remove")
	// The links of the units that it disables are systemctl's to remove.
	for link, unit := range enabled() {
		if strings.Contains(stopped, unit) {
			if err := os.Remove(filepath.Join(s.root, link)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.onlyUsers("remove")
}
