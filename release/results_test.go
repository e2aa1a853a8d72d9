package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/release/krew"
)

// entries returns the files of a compressed archive.
func entries(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(data)
	}
}

// checkArchive requires the files that `make install` installs, in a directory with the archive's name, and programs
// that run.
func checkArchive(t *testing.T, r *release) {
	archive := only(t, r, "volplane-*-linux-*.tar.gz")
	top := strings.TrimSuffix(filepath.Base(archive), ".tar.gz")
	installed := t.TempDir()
	bin := t.TempDir()
	to := t.TempDir()
	shell(t, "tar", "-C", to, "-xf", archive)
	shell(t, "cp", "-r", filepath.Join(to, top, "bin")+"/.", bin)
	// make does not rebuild the programs.
	shell(t, "make", "-C", r.root, "--no-print-directory", "--old-file=build", "install", "BIN="+bin, "DESTDIR="+installed,
		"PREFIX=/usr/local", "VERSION="+r.version)
	shell(t, "sh", "-c", `cd "$1" && find . -type f | while read -r f; do cmp "$f" "$2/$f" || exit 1; done`, "sh",
		filepath.Join(installed, "usr/local"), filepath.Join(to, top))
	// The revision of a release is its version.
	out := shell(t, filepath.Join(to, top, "bin/volplane"), "version", "-o", "json")
	for _, key := range []string{"version", "revision"} {
		if !strings.Contains(out, fmt.Sprintf("%q: %q", key, r.version)) {
			t.Errorf("volplane does not say its %s: %s", key, out)
		}
	}
	shell(t, filepath.Join(to, top, "bin/volplaned"), "--help")
	for page, want := range map[string]string{
		"volplane": ".BR volplane\\-why (8)", "volplane-why": "Exit codes", "volplane-driver-add": "volplane driver add",
		"volplane-up": "\\-\\-data\\-dir", "volplaned-up": "\\-\\-data\\-dir",
	} {
		at := filepath.Join(to, top, "share/man/man8", page+".8.gz")
		if out := shell(t, "sh", "-c", `zcat "$1"`, "sh", at); !strings.Contains(out, want) {
			t.Errorf("the manual page %s does not have %s:\n%s", page, want, out)
		}
	}
}

// checkPlugin requires a manifest as in krew's index, for an archive with the program and the licence.
func checkPlugin(t *testing.T, r *release) {
	text, err := os.ReadFile(filepath.Join(r.out, "why-volume.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var m krew.Manifest
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		t.Fatal(err)
	}
	checkManifest(t, r, m)
	for _, p := range m.Spec.Platforms {
		checkPlatform(t, r, p)
	}
	to := t.TempDir()
	for _, system := range systems() {
		shell(t, "tar", "-C", to, "-xf", only(t, r, "kubectl-why_volume-*-"+system+"-*.tar.gz"))
		at := filepath.Join(to, krew.Archive{OS: system}.Program())
		if got := systemOf(at); got != system {
			t.Errorf("the program for %s is one for %s", system, got)
		}
		if info, err := buildinfo.ReadFile(at); err != nil || info.Main.Path != "volplane.dev/volplane" {
			t.Errorf("the program for %s is built of %v, error %v", system, info, err)
		}
	}
	shell(t, "tar", "-C", to, "-xf", only(t, r, "kubectl-why_volume-*-linux-*.tar.gz"))
	help := shell(t, filepath.Join(to, "kubectl-why_volume"), "--help")
	if !strings.Contains(help, "kubectl why-volume [TYPE/NAME") || !strings.Contains(help, "--as-group") {
		t.Errorf("the plugin's help is\n%s", help)
	}
}

// checkManifest requires that a manifest meets the rules of krew's index.
func checkManifest(t *testing.T, r *release, m krew.Manifest) {
	t.Helper()
	s := m.Spec
	if m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || m.Kind != "Plugin" {
		t.Errorf("it is a %s %s", m.APIVersion, m.Kind)
	}
	if m.Metadata.Name != "why-volume" || s.Version != r.version || !strings.HasPrefix(s.Homepage, "https://") {
		t.Errorf("it is about %s %s of %s", m.Metadata.Name, s.Version, s.Homepage)
	}
	if len(s.Short) > 50 || strings.HasSuffix(s.Short, ".") || strings.Contains(strings.ToLower(s.Short), "kubectl") {
		t.Errorf("krew's index refuses the short description %q", s.Short)
	}
	if len(s.Platforms) != len(systems())*len(r.platforms) {
		t.Errorf("it has %d platforms", len(s.Platforms))
	}
}

// systemOf returns the system that a program is for.
func systemOf(at string) string {
	if f, err := elf.Open(at); err == nil {
		_ = f.Close()
		return "linux"
	}
	if f, err := macho.Open(at); err == nil {
		_ = f.Close()
		return "darwin"
	}
	if f, err := pe.Open(at); err == nil {
		_ = f.Close()
		return "windows"
	}
	return "none that is known"
}

// checkPlatform requires the archive that the manifest describes, with all files that krew extracts.
func checkPlatform(t *testing.T, r *release, p krew.Platform) {
	t.Helper()
	at := filepath.Join(r.out, path.Base(p.URI))
	data, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(data)); got != p.SHA256 {
		t.Errorf("%s has the sum %s, the manifest says %s", at, got, p.SHA256)
	}
	files := entries(t, at)
	for _, c := range p.Files {
		if files[c.From] == "" {
			t.Errorf("%s has no %s", at, c.From)
		}
	}
	if !slices.ContainsFunc(p.Files, func(c krew.Copy) bool { return c.From == p.Bin }) {
		t.Errorf("the program %s is not installed", p.Bin)
	}
}

// listed is what is read of a list of contents.
type listed struct {
	BOMFormat, SpecVersion, SerialNumber string
	Components                           []struct {
		Ref string `json:"bom-ref"`
	}
	Dependencies []struct {
		Ref       string
		DependsOn []string
	}
}

// checkContents requires each module of a program and each package of the node's image in the list.
func checkContents(t *testing.T, r *release) {
	data, err := os.ReadFile(only(t, r, "*.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc listed
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	kind := strings.Join([]string{doc.BOMFormat, doc.SpecVersion, doc.SerialNumber}, " ")
	if !strings.HasPrefix(kind, "CycloneDX 1.6 urn:uuid:") {
		t.Errorf("it is %s", kind)
	}
	refs := []string{"volplane"}
	for _, c := range doc.Components {
		if slices.Contains(refs, c.Ref) {
			t.Errorf("%s is there twice", c.Ref)
		}
		refs = append(refs, c.Ref)
	}
	var named []string
	for _, d := range doc.Dependencies {
		named = append(append(named, d.DependsOn...), d.Ref)
	}
	for _, on := range named {
		if !slices.Contains(refs, on) {
			t.Errorf("%s is no component", on)
		}
	}
	for _, want := range []string{
		"pkg:golang/k8s.io/client-go@", "pkg:golang/std@", "pkg:deb/debian/e2fsprogs@", "program:volplaned",
	} {
		if !slices.ContainsFunc(refs, func(ref string) bool { return strings.HasPrefix(ref, want) }) {
			t.Errorf("no component is a %s", want)
		}
	}
}
