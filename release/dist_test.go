package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestRelease makes a release for this machine's architecture, twice in different directories, and uses each part of
// the result.
func TestRelease(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key")
	shell(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	elsewhere := filepath.Join(t.TempDir(), "another", "place")
	copySource(t, root, elsewhere)
	r, again := planned(t, root, key), planned(t, elsewhere, "")
	// They run one after the other: the second uses Go's cache of the first.
	for _, one := range []*release{r, again} {
		if err := one.make(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name, check := range map[string]func(*testing.T, *release){
		"again":     func(t *testing.T, r *release) { same(t, r.out, again.out) },
		"sums":      checkSums,
		"signature": func(t *testing.T, r *release) { checkSignature(t, r, key) },
		"archive":   checkArchive, "plugin": checkPlugin, "chart": checkChart, "licenses": checkLicenses,
		"contents": checkContents, "skopeo": checkSkopeo, "containerd": checkContainerd,
		"policy": checkPolicy, "deb": checkDeb, "rpm": checkRPM,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, r)
		})
	}
}

// planned returns a release of the source in root for this machine's architecture, which has not been made yet.
func planned(t *testing.T, root, key string) *release {
	t.Helper()
	r, err := parse([]string{
		"-root", root, "-out", filepath.Join(t.TempDir(), "dist"), "-version", "v0.1.0-rc.1", "-platforms", runtime.GOARCH,
		"-key", key,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// shell runs a program and returns what it prints.
func shell(t *testing.T, name string, args ...string) string {
	t.Helper()
	return shellIn(t, nil, name, args...)
}

// shellIn runs a program with an input.
func shellIn(t *testing.T, in []byte, name string, args ...string) string {
	t.Helper()
	out, err := attempt(t.Context(), in, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// attempt runs a program, and returns its output and its error.
func attempt(ctx context.Context, in []byte, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// only returns the one result whose name matches.
func only(t *testing.T, r *release, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.out, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%d results are called %s, error %v", len(found), pattern, err)
	}
	return found[0]
}

// checkSums requires the sum of each result, in the format of sha256sum.
func checkSums(t *testing.T, r *release) {
	cmd := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", sumsFile)
	cmd.Dir = r.out
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("sha256sum: %v: %s", err, out)
	}
	all, err := os.ReadDir(r.out)
	if err != nil {
		t.Fatal(err)
	}
	// All but the list and its signature.
	if got := strings.Count(string(out), ": OK\n"); got != len(all)-2 {
		t.Errorf("%d of %d results have sums", got, len(all)-2)
	}
}

// checkSignature requires a signature that ssh-keygen verifies for this list, but not for another one.
func checkSignature(t *testing.T, r *release, key string) {
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	signers := filepath.Join(t.TempDir(), "signers")
	if err := os.WriteFile(signers, append([]byte("release "), public...), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(r.out, sumsFile))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-Y", "verify", "-f", signers, "-I", "release", "-n", "file", "-s", filepath.Join(r.out, sumsFile+signed),
	}
	shellIn(t, list, "ssh-keygen", args...)
	if _, err := attempt(t.Context(), append(list, '\n'), "ssh-keygen", args...); err == nil {
		t.Error("the signature is good for another list")
	}
}

// copySource copies the files of the source to another directory.
func copySource(t *testing.T, from, to string) {
	t.Helper()
	list := shell(t, "git", "-C", from, "ls-files", "--cached", "--others", "--exclude-standard")
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	packed := shellIn(t, []byte(list), "tar", "-C", from, "--ignore-failed-read", "-cf", "-", "-T", "-")
	shellIn(t, []byte(packed), "tar", "-C", to, "-xf", "-")
}

// same requires that two directories have the same files.
func same(t *testing.T, a, b string) {
	t.Helper()
	sums := func(dir string) map[string]string {
		out := map[string]string{}
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			data, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(data))
		}
		delete(out, sumsFile+signed)
		return out
	}
	first, second := sums(a), sums(b)
	if len(first) != len(second) {
		t.Errorf("one release has %d files, the other %d", len(first), len(second))
	}
	for name, sum := range first {
		if second[name] != sum {
			t.Errorf("%s: the same source made other bytes", name)
		}
	}
}
