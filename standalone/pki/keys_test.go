package pki_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/standalone/pki"
)

func keysOf(t *testing.T, a *pki.Authority) (identity.Keys, string) {
	t.Helper()
	k, err := a.Keys()
	if err != nil {
		t.Fatal(err)
	}
	hash, err := pki.HashOf(k.CACert)
	if err != nil {
		t.Fatal(err)
	}
	return k, hash
}

// TestWriteKeys: another host gets the same authority from them, in files that only their owner may read.
func TestWriteKeys(t *testing.T) {
	there, here := filepath.Join(t.TempDir(), "pki"), filepath.Join(t.TempDir(), "a", "pki")
	if hash, err := pki.HashIn(here); err != nil || hash != "" {
		t.Errorf("nothing: %q, %v", hash, err)
	}
	a := open(t, there)
	k, hash := keysOf(t, a)
	if err := pki.WriteKeys(here, k, hash); err != nil {
		t.Fatal(err)
	}
	b := open(t, here)
	if string(a.CertPEM()) != string(b.CertPEM()) || !a.ServiceAccountKey.Equal(b.ServiceAccountKey) {
		t.Error("the authority differs")
	}
	if got, err := pki.HashIn(here); err != nil || got != hash {
		t.Errorf("hash %q, %v, want %q", got, err, hash)
	}
	private(t, here, 3)
}

// private requires this many files in a directory, which only their owner may read.
func private(t *testing.T, dir string, files int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != files {
		t.Errorf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
}

// TestSeal: two instances of one authority give a text the same seal, and another authority or another text gives
// another one.
func TestSeal(t *testing.T) {
	dir, seals := t.TempDir(), map[string]bool{}
	for _, by := range []*pki.Authority{open(t, dir), open(t, dir), open(t, t.TempDir())} {
		for _, text := range []string{"x", "y"} {
			seal, err := by.Seal("test", text)
			if err != nil {
				t.Fatal(err)
			}
			seals[seal] = true
		}
	}
	if len(seals) != 4 {
		t.Errorf("%d different seals by two authorities of two texts, want 4", len(seals))
	}
}

// TestWriteKeysRefuses: keys that do not belong together are not written, and not shown.
func TestWriteKeysRefuses(t *testing.T) {
	right, hash := keysOf(t, open(t, t.TempDir()))
	other, _ := keysOf(t, open(t, t.TempDir()))
	bad := []byte("sentinel")
	for name, c := range map[string]struct {
		change func(k *identity.Keys)
		says   string
	}{
		"another authority":          {func(k *identity.Keys) { *k = other }, "has the hash"},
		"another key":                {func(k *identity.Keys) { k.CAKey = other.CAKey }, "does not belong to its"},
		"no key":                     {func(k *identity.Keys) { k.CAKey = bad }, "no PEM key was found"},
		"no key of service accounts": {func(k *identity.Keys) { k.ServiceAccountKey = bad }, "service account tokens"},
		"no certificate":             {func(k *identity.Keys) { k.CACert = bad }, "not one certificate"},
		"two certificates": {
			func(k *identity.Keys) { k.CACert = slices.Concat(k.CACert, other.CACert) }, "not one certificate",
		},
		"a key for a certificate": {func(k *identity.Keys) { k.CACert = k.CAKey }, "not one certificate"},
	} {
		k, dir := right, filepath.Join(t.TempDir(), "pki")
		c.change(&k)
		err := pki.WriteKeys(dir, k, hash)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "sentinel") {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s: it was written: %v", name, err)
		}
	}
	for name, files := range map[string][]string{
		"a key alone": {"ca.key"}, "a damaged certificate": {"ca.crt", "ca.key"},
	} {
		dir := t.TempDir()
		for _, file := range files {
			if err := os.WriteFile(filepath.Join(dir, file), bad, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := pki.HashIn(dir); err == nil || !strings.Contains(err.Error(), "restore it from a backup") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
