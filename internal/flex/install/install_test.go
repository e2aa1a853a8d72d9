package install

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/workshop/finding"
)

// pluginHost is a plugin directory and drivers to put into it.
type pluginHost struct {
	*testing.T
	dir     string
	plugins string
	name    decide.Name
}

func newPluginHost(t *testing.T) *pluginHost {
	t.Helper()
	dir := t.TempDir()
	return &pluginHost{T: t, dir: dir, plugins: filepath.Join(dir, "kubelet", "exec"), name: demo()}
}

func demo() decide.Name { return decide.Name{Vendor: "example.com", Driver: "demo"} }

// driver writes a driver that says which version it is.
func (w *pluginHost) driver(version string) string {
	return w.script(version, "#!/bin/sh\n# version "+version+
		"\n[ $1 = init ] || { echo '{\"status\":\"Not supported\"}'; exit 1; }\n"+
		"echo '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\n")
}

func (w *pluginHost) script(file, text string) string {
	w.Helper()
	path := filepath.Join(w.dir, file)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		w.Fatal(err)
	}
	return path
}

func (w *pluginHost) options(source string) Options {
	return Options{Name: w.name.String(), Dir: w.plugins, Source: source}
}

// change is one by which a driver is installed, whether there is one or not.
func (w *pluginHost) change(o Options) change {
	w.Helper()
	c, err := o.change()
	if err != nil {
		w.Fatal(err)
	}
	c.upgrade, c.absent = true, true
	return c
}

func (w *pluginHost) exe() string { return filepath.Join(w.plugins, w.name.Dir(), w.name.Driver) }

// installed returns the version in place.
func (w *pluginHost) installed() string { return w.versionOf(w.exe()) }

func (w *pluginHost) versionOf(path string) string {
	w.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	_, rest, _ := strings.Cut(string(data), "# version ")
	version, _, _ := strings.Cut(rest, "\n")
	return version
}

// names returns what is in the plugin directory.
func (w *pluginHost) names() string {
	w.Helper()
	entries, err := os.ReadDir(w.plugins)
	if err != nil {
		w.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func (w *pluginHost) want(deed string, r Report, err error) {
	w.Helper()
	if err != nil || r.Deed != deed {
		w.Fatalf("deed %q, error %v; want %s", r.Deed, err, deed)
	}
}

func TestInstall(t *testing.T) {
	w := newPluginHost(t)
	r, err := Install(t.Context(), w.options(w.driver("1")))
	w.want(Installed, r, err)
	if w.installed() != "1" || r.Path != w.exe() || len(r.Hash) != 16 || r.Capabilities == nil || r.Capabilities.Attach {
		t.Errorf("installed %s, report %+v", w.installed(), r)
	}
	info, err := os.Stat(w.exe())
	if err != nil || info.Mode() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if names := w.names(); names != "example.com~demo" {
		t.Errorf("beside it: %s", names)
	}

	r, err = Install(t.Context(), w.options(w.driver("1")))
	w.want(Unchanged, r, err)
}

func TestUpgradeRollbackUninstall(t *testing.T) {
	w := newPluginHost(t)
	r, err := Install(t.Context(), w.options(w.driver("1")))
	w.want(Installed, r, err)

	// Another version is not replaced unless that is wanted.
	o := w.options(w.driver("2"))
	if _, err = Install(t.Context(), o); !errors.Is(err, ErrOther) || w.installed() != "1" {
		t.Errorf("%v, installed %s", err, w.installed())
	}
	r, err = Upgrade(t.Context(), o)
	w.want(Upgraded, r, err)
	if w.installed() != "2" || r.Previous == "" || r.Previous == r.Hash {
		t.Errorf("installed %s, report %+v", w.installed(), r)
	}

	for _, version := range []string{"1", "2"} {
		r, err = Rollback(t.Context(), w.options(""))
		w.want(RolledBack, r, err)
		if w.installed() != version {
			t.Errorf("installed %s, want %s", w.installed(), version)
		}
	}

	r, err = Uninstall(t.Context(), w.options(""))
	w.want(Removed, r, err)
	if names := w.names(); names != "" {
		t.Errorf("left: %s", names)
	}
}

// TestAbsent: what is not there cannot be changed, and nothing is made.
func TestAbsent(t *testing.T) {
	w := newPluginHost(t)
	o := w.options(w.driver("1"))
	if _, err := Uninstall(t.Context(), o); !errors.Is(err, ErrAbsent) {
		t.Error(err)
	}
	if _, err := Rollback(t.Context(), o); !errors.Is(err, ErrAbsent) {
		t.Error(err)
	}
	if _, err := Upgrade(t.Context(), o); !errors.Is(err, ErrAbsent) || w.names() != "" {
		t.Errorf("%v, left: %s", err, w.names())
	}
}

func TestInstallWithoutVendor(t *testing.T) {
	w := newPluginHost(t)
	o := w.options(w.driver("1"))
	o.Name = "demo"
	r, err := Install(t.Context(), o)
	w.want(Installed, r, err)
	if got := w.versionOf(filepath.Join(w.plugins, "demo", "demo")); got != "1" ||
		finding.Worst(r.Findings) != finding.Warn {
		t.Errorf("version %s, findings %+v", got, r.Findings)
	}
}

func TestRollbackWithoutPrevious(t *testing.T) {
	w := newPluginHost(t)
	r, err := Install(t.Context(), w.options(w.driver("1")))
	w.want(Installed, r, err)
	if _, err := Rollback(t.Context(), w.options("")); !errors.Is(err, ErrNoPrevious) {
		t.Error(err)
	}
}

// TestInstallPutsRightWhatIsWrong: a file with the same content but another mode does not
// count as installed.
func TestInstallPutsRightWhatIsWrong(t *testing.T) {
	w := newPluginHost(t)
	o := w.options(w.driver("1"))
	r, err := Install(t.Context(), o)
	w.want(Installed, r, err)
	if err := os.Chmod(w.exe(), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err = Install(t.Context(), o)
	w.want(Installed, r, err)
	if info, err := os.Stat(w.exe()); err != nil || info.Mode() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestInstallRefuses what a host should never see: nothing is changed, nothing
// is left.
func TestInstallRefuses(t *testing.T) {
	for name, script := range map[string]string{
		"empty":       "",
		"text":        "hello",
		"windows":     "#!/bin/sh\r\necho {}\r\n",
		"interpreter": "#!/usr/bin/nothing-like-this\n",
		"env":         "#!/usr/bin/env nothing-like-this\n",
		"relative":    "#!sh\necho\n",
		"silent":      "#!/bin/sh\n",
		"failing":     "#!/bin/sh\necho '{\"status\":\"Failure\",\"message\":\"no tools\"}'; exit 1\n",
		"noisy":       "#!/bin/sh\necho warning >&2; echo '{\"status\":\"Success\",\"capabilities\":{}}'\n",
		"null":        "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":null}'\n",
		"elf":         "\x7fELF nothing more",
	} {
		t.Run(name, func(t *testing.T) {
			w := newPluginHost(t)
			r, err := Install(t.Context(), w.options(w.driver("1")))
			w.want(Installed, r, err)
			r, err = Upgrade(t.Context(), w.options(w.script("bad", script)))
			if !errors.Is(err, ErrRefused) || finding.Worst(r.Findings) != finding.Fail {
				t.Errorf("%v, findings %+v", err, r.Findings)
			}
			if w.installed() != "1" || w.names() != "example.com~demo" {
				t.Errorf("installed %s, there is %s", w.installed(), w.names())
			}
			if left, err := filepath.Glob(filepath.Join(filepath.Dir(w.plugins), ".*")); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// TestInstallRefusesHome: what others could change is started as root.
func TestInstallRefusesHome(t *testing.T) {
	w := newPluginHost(t)
	home := filepath.Dir(w.exe())
	o := w.options(w.driver("1"))
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(home, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), "others than root") {
		t.Error(err)
	}
	if err := errors.Join(os.Remove(home), os.Symlink(t.TempDir(), home)); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Error(err)
	}
	if err := os.Chown(w.plugins, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), "belongs to user 1000") {
		t.Error(err)
	}
}

// TestInstallWithoutTrying: a driver of another root is not started.
func TestInstallWithoutTrying(t *testing.T) {
	w := newPluginHost(t)
	o := w.options(w.script("theirs", "#!/usr/bin/nothing-like-this\n# version theirs\n"))
	o.NoInit = true
	r, err := Install(t.Context(), o)
	w.want(Installed, r, err)
	if w.installed() != "theirs" || r.Capabilities != nil {
		t.Errorf("installed %s, report %+v", w.installed(), r)
	}
}

// TestControlPlane: a script that attaches for a kubelet is installed, and what
// will not work is said.
func TestControlPlane(t *testing.T) {
	const attaching = "#!/bin/sh\n[ $1 = init ] || { echo '{\"status\":\"Not supported\"}'; exit 1; }\n" +
		"echo '{\"status\":\"Success\",\"capabilities\":{\"attach\":true}}'\n"
	for host, want := range map[string]finding.Level{HostKubelet: finding.Warn, HostVolplane: finding.Pass} {
		w := newPluginHost(t)
		c := w.change(w.options(w.script("attaching", attaching)))
		c.directory.Host = host
		r, err := c.install(t.Context())
		w.want(Installed, r, err)
		if got := finding.Worst(r.Findings); got != want {
			t.Errorf("%s: %s: %+v", host, got, r.Findings)
		}
	}
}

// TestUnknownOperation: an operation that does not exist is called once, with nothing that could be
// mounted, and only of a driver that may be started.
func TestUnknownOperation(t *testing.T) {
	for _, here := range []bool{true, false} {
		w := newPluginHost(t)
		o := w.options(w.script("calls", "#!/bin/sh\nprintf '%s|' \"$@\" >>"+w.dir+"/log\n"+
			"echo '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\n"))
		o.NoInit = !here
		r, err := Install(t.Context(), o)
		w.want(Installed, r, err)
		said := slices.ContainsFunc(r.Findings, func(f finding.Finding) bool {
			return f.Check == "unknown-operation" && f.Level == finding.Warn && strings.HasSuffix(f.Message, "succeeds")
		})
		calls, err := os.ReadFile(w.dir + "/log")
		if here != said || here != (err == nil) || here && string(calls) != "init|volplanedoctor|/dev/null/nothing|" {
			t.Errorf("called with %s, %v; findings %+v", calls, err, r.Findings)
		}
	}
}

// TestInstallTellsTheCause of what cannot be installed, and who has to act.
func TestInstallTellsTheCause(t *testing.T) {
	for script, want := range map[string]string{
		"#!/bin/sh\r\n":                     "format: its first line ends with a carriage return (CRLF)",
		"#!/bin/sh\necho 'Usage:\a demo'\n": `init: the driver printed no answer (exit code 0); it printed "Usage:`,
		"#!/usr/bin/env -S python9 -u\n":    "interpreter: its interpreter python9 is not on this host",
		"\xef\xbb\xbf#!/bin/sh\n":           "format: a byte order mark is before its #!",
	} {
		w := newPluginHost(t)
		r, err := Install(t.Context(), w.options(w.script("bad", script)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", script, err, want)
		}
		for _, f := range r.Findings {
			if f.Level == finding.Fail && (f.Next == "" || len(f.Breaks) == 0) {
				t.Errorf("%q: %+v", script, f)
			}
		}
	}
}

func TestForce(t *testing.T) {
	w := newPluginHost(t)
	o := w.options(w.script("noisy", "#!/bin/sh\n# version noisy\necho warning >&2; echo '{\"status\":\"Success\"}'\n"))
	o.Force = true
	r, err := Install(t.Context(), o)
	w.want(Installed, r, err)
	if w.installed() != "noisy" || finding.Worst(r.Findings) != finding.Fail {
		t.Errorf("installed %s, report %+v", w.installed(), r)
	}
}

// TestLabel: what is installed has the SELinux label of the plugin directory,
// whatever policy there is (F-060).
func TestLabel(t *testing.T) {
	w := newPluginHost(t)
	if err := os.MkdirAll(w.plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	const want = "system_u:object_r:bin_t:s0"
	if err := unix.Lsetxattr(w.plugins, labelName, []byte(want), 0); err != nil {
		t.Fatal(err)
	}
	r, err := Install(t.Context(), w.options(w.driver("1")))
	w.want(Installed, r, err)
	for _, path := range []string{filepath.Dir(w.exe()), w.exe()} {
		if got, err := labelOf(path); err != nil || got != want {
			t.Errorf("%s has the label %q, %v", path, got, err)
		}
	}
}
