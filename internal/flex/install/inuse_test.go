package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/workshop/finding"
)

func (w *pluginHost) mount(parts ...string) string {
	w.Helper()
	dir := filepath.Join(append([]string{w.dir}, parts...)...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// newUsedHost is one whose driver no other test on this machine mounts volumes
// of: all that are mounted count.
func newUsedHost(t *testing.T) *pluginHost {
	w := newPluginHost(t)
	w.name.Vendor = fmt.Sprintf("p%d.example.com", os.Getpid())
	return w
}

// TestUninstallInUse is refused while anything of the driver is mounted, and
// keeps what unmounts it when it is forced (F-038, H16).
func TestUninstallInUse(t *testing.T) {
	for _, device := range []bool{false, true} {
		w := newUsedHost(t)
		parts := []string{"pods", "8d2f", "volumes", w.name.Dir(), "data"}
		if device {
			parts = []string{"plugins", "kubernetes.io", "flexvolume", w.name.Vendor, "demo", "mounts", "pv1"}
		}
		r, err := Install(t.Context(), w.options(w.driver("1")))
		w.want(Installed, r, err)
		at := w.mount(parts...)
		o := w.options("")
		if _, err := Uninstall(t.Context(), o); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), at) ||
			w.installed() != "1" {
			t.Errorf("%v, installed %s", err, w.installed())
		}
		o.Force = true
		r, err = Uninstall(t.Context(), o)
		w.want(Removed, r, err)
		if kept := beside(w.plugins, w.name, "removed"); w.versionOf(kept) != "1" || len(r.Findings) != 1 ||
			r.Findings[0].Path != kept {
			t.Errorf("kept %s, report %+v", w.versionOf(kept), r)
		}
		if names := w.names(); names != "."+w.name.Dir()+".removed" {
			t.Errorf("there is %s", names)
		}
	}
}

// TestUpgradeInUse: an upgrade in use is allowed; that the driver now attaches is reported.
func TestUpgradeInUse(t *testing.T) {
	w := newUsedHost(t)
	r, err := Install(t.Context(), w.options(w.driver("1")))
	w.want(Installed, r, err)
	w.mount("pods", "8d2f", "volumes", w.name.Dir(), "data")
	o := w.options(w.driver("2"))
	r, err = Upgrade(t.Context(), o)
	w.want(Upgraded, r, err)
	if finding.Worst(r.Findings) != finding.Pass {
		t.Errorf("findings %+v", r.Findings)
	}
	o.Source = w.script("3",
		"#!/bin/sh\n# version 3\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":true}}'\n")
	r, err = Upgrade(t.Context(), o)
	w.want(Upgraded, r, err)
	if last := r.Findings[len(r.Findings)-1]; last.Check != "attach" || last.Level != finding.Warn ||
		!strings.Contains(last.Message, "does not attach, this one does") {
		t.Errorf("findings %+v", r.Findings)
	}
	r, err = Rollback(t.Context(), o)
	w.want(RolledBack, r, err)
	if last := r.Findings[len(r.Findings)-1]; last.Check != "attach" ||
		!strings.Contains(last.Message, "before attaches, this one does not") {
		t.Errorf("findings %+v", r.Findings)
	}
}

// TestUninstallLeavesOthersFiles and says so.
func TestUninstallLeavesOthersFiles(t *testing.T) {
	w := newPluginHost(t)
	r, err := Install(t.Context(), w.options(w.driver("1")))
	w.want(Installed, r, err)
	other := filepath.Join(filepath.Dir(w.exe()), "notes")
	if err := os.WriteFile(other, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Uninstall(t.Context(), w.options("")); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Error(err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	r, err = Uninstall(t.Context(), w.options(""))
	w.want(Removed, r, err)
}

func TestVolumesIn(t *testing.T) {
	const (
		pods  = "/var/lib/kubelet/pods/"
		nodes = "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/"
	)
	for _, c := range []struct {
		paths []string
		want  int
	}{
		{nil, 0},
		{[]string{pods + "1/volumes/example.com~demo/data"}, 1},
		{[]string{pods + "1/volumes/example.com~demo/data", pods + "1/volumes/example.com~demo/data/below"}, 1},
		{[]string{pods + "1/volumes/example.com~demo/data", pods + "2/volumes/example.com~demo/data"}, 2},
		{[]string{nodes + "example.com/demo/mounts/pv1"}, 1},
		{[]string{nodes + "example.com/demo/mounts/pv1", pods + "1/volumes/example.com~demo/pv1"}, 1},
	} {
		if got := volumesIn(c.paths, demo()); got != c.want {
			t.Errorf("%v: %d volumes, want %d", c.paths, got, c.want)
		}
		for _, path := range c.paths {
			if at, _ := volumeAt(path, demo()); at == "" {
				t.Errorf("%s is none", path)
			}
		}
	}
	for _, other := range []string{
		pods + "1/volumes/example.com~demo", pods + "1/volumes/example.com~demo2/data",
		pods + "1/volumes/kubernetes.io~csi/example.com~demo/mount",
		nodes + "example.com/demo2/mounts/pv1", nodes + "example.com/demo/mounts",
	} {
		if at, _ := volumeAt(other, demo()); at != "" {
			t.Errorf("%s is %s", other, at)
		}
	}
}
