package install

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"volplane.dev/volplane/internal/flex/host"
)

// another is a user that is not root.
const another = 12345

func (w *pluginHost) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// trap writes a driver that creates the file "started" when it is run.
func (w *pluginHost) trap(version string) (path, started string) {
	w.Helper()
	started = filepath.Join(w.dir, "started-"+version)
	return w.script("trap-"+version, "#!/bin/sh\n# version "+version+"\n>'"+started+
		"'\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":true}}'\n"), started
}

// TestOthersAreNotStarted: a file that a user other than root owns is replaced, and
// neither started nor restored.
func TestOthersAreNotStarted(t *testing.T) {
	w := newPluginHost(t)
	source, started := w.trap("theirs")
	_, err := Install(t.Context(), w.options(source))
	w.must(err)
	w.must(os.Remove(started))
	w.must(os.Chown(w.exe(), another, another))
	o := w.options(w.driver("2"))
	r, err := Upgrade(t.Context(), o)
	w.want(Upgraded, r, err)
	if _, err := os.Stat(started); err == nil {
		t.Error("the version before was started, which root does not own")
	}
	for _, force := range []bool{false, true} {
		o.Force = force
		if _, err := Rollback(t.Context(), o); !errors.Is(err, ErrRefused) || w.installed() != "2" {
			t.Errorf("rolled back to %s: %v", w.installed(), err)
		}
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the previous version was started, which root does not own")
	}
}

// TestRollbackIsWhole: the restored version has the mode that it needs.
func TestRollbackIsWhole(t *testing.T) {
	w := newPluginHost(t)
	_, err := Install(t.Context(), w.options(w.driver("1")))
	w.must(err)
	w.must(os.Chmod(w.exe(), 0o700))
	o := w.options(w.driver("2"))
	_, err = Upgrade(t.Context(), o)
	w.must(err)
	for _, want := range []string{"1", "2", "1"} {
		r, err := Rollback(t.Context(), o)
		w.want(RolledBack, r, err)
		info, err := os.Stat(w.exe())
		if err != nil || info.Mode() != 0o755 || w.installed() != want {
			t.Errorf("%s: %v, %v", w.installed(), info.Mode(), err)
		}
	}
	if names := w.names(); names != ".example.com~demo.previous example.com~demo" {
		t.Errorf("beside it: %s", names)
	}
}

// TestPayloadOfOthers: a version that another user put in the place of an installed one
// is not started.
func TestPayloadOfOthers(t *testing.T) {
	for what, owned := range map[string]string{"version": "HASH", "driver's directory": "", "payload directory": ".."} {
		t.Run(what, func(t *testing.T) {
			w := newPluginHost(t)
			o := w.options(w.tree("1"))
			hash, err := treeHash(o.Source)
			w.must(err)
			home := filepath.Join(w.dir, "kubelet", "flex-payload", w.name.Dir())
			version := filepath.Join(home, hash)
			w.must(os.MkdirAll(version, 0o755))
			source, started := w.trap("planted")
			w.must(os.Rename(source, filepath.Join(version, "demo")))
			if owned == "HASH" {
				owned = hash
			}
			w.must(os.Chown(filepath.Join(home, owned), another, another))
			if _, err := Install(t.Context(), o); err == nil {
				t.Error("installed")
			}
			if _, err := os.Stat(started); err == nil {
				t.Error("started")
			}
		})
	}
}

// TestPayloadOfAKeptVersion: what the bridge unmounts volumes with needs its
// files, however many versions came since.
func TestPayloadOfAKeptVersion(t *testing.T) {
	w := newPluginHost(t)
	o := w.options(w.tree("1"))
	o.RootDir = filepath.Join(w.dir, "root")
	first, err := Install(t.Context(), o)
	w.must(err)
	kept := filepath.Join(host.KeptDir(filepath.Join(o.RootDir, "state"), w.name), first.Hash)
	w.must(os.MkdirAll(kept, 0o700))
	w.must(copyFile(w.exe(), filepath.Join(kept, w.name.Driver), 0o700))
	for _, version := range []string{"2", "3", "4"} {
		o.Source = w.tree(version)
		_, err := Upgrade(t.Context(), o)
		w.must(err)
	}
	if _, err := os.Stat(first.Payload); err != nil || w.payloads() != 3 {
		t.Errorf("%d versions, %v", w.payloads(), err)
	}
	w.must(os.RemoveAll(kept))
	o.Source = w.tree("5")
	_, err = Upgrade(t.Context(), o)
	w.must(err)
	if w.payloads() != 2 {
		t.Errorf("%d versions", w.payloads())
	}
}

// TestUninstallBesideABridgeThatHasEnded: what it will undo when it runs again
// needs the driver, and the files of one that has more than one.
func TestUninstallBesideABridgeThatHasEnded(t *testing.T) {
	w := newPluginHost(t)
	o := w.options(w.tree("1"))
	o.RootDir = filepath.Join(w.dir, "root")
	r, err := Install(t.Context(), o)
	w.want(Installed, r, err)
	record := filepath.Join(o.RootDir, "state/volumes/demo.example.com/attached/0.json")
	w.must(os.MkdirAll(filepath.Dir(record), 0o700))
	w.must(os.WriteFile(record, []byte("{}"), 0o600))
	if _, err := Uninstall(t.Context(), o); !errors.Is(err, ErrInUse) || w.answers() != "1" {
		t.Errorf("%v", err)
	}
	w.must(os.Remove(record))
	r, err = Uninstall(t.Context(), o)
	w.want(Removed, r, err)
	if w.payloads() != 0 {
		t.Error("files are left")
	}
}
