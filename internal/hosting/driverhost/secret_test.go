package driverhost

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/hosting/driverfile"
)

// TestSecret: a driver is started as soon as the Secret that its file names exists.
func TestSecret(t *testing.T) {
	w := newDriverHost(t)
	p := w.process("all", controller, node)
	p.EnvFromSecret = []driverfile.SecretVariable{{Name: "TOKEN", Secret: "ns/s", Key: "k"}}
	w.put(p)
	w.tells("the secret does not exist")
	w.mu.Lock()
	w.secrets["ns/s/k"] = "secret"
	w.mu.Unlock()
	w.until("it has the secret", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.reached, name+" secret1 controller=true")
	})
	record, err := os.ReadFile(filepath.Join(StateDir(w.root), name+".json"))
	if err != nil || strings.Contains(string(record), "secret1") || strings.Contains(string(record), `"secret"`) {
		t.Errorf("the record has it: %s %v", record, err)
	}
}

// TestOptionalSecret: a driver runs without a value that it can do without.
func TestOptionalSecret(t *testing.T) {
	w := newDriverHost(t)
	p := w.process("all", controller, node)
	p.EnvFromSecret = []driverfile.SecretVariable{{Name: "TOKEN", Secret: "ns/s", Key: "k", Optional: true}}
	w.put(p)
	w.until("it runs without", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.reached, name+" 1 controller=true")
	})
	if n := w.told("secret"); n != 0 {
		t.Errorf("told %q", w.said)
	}
}
