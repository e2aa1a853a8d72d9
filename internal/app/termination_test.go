package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTermination: why a process ends is written to a file that is there, without what it had, and to no other.
func TestTermination(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "log")
	tellTermination(file, errors.New("nobody reads this"))
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file was made: %v", err)
	}
	read := func() string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if err := os.WriteFile(file, []byte("a longer text than the next one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tellTermination(file, nil)
	if got := read(); !strings.HasPrefix(got, "a longer") {
		t.Errorf("a good end has written %q", got)
	}
	tellTermination(file, errNoNamespace)
	if got := read(); got != errNoNamespace.Error()+"\n" {
		t.Errorf("it has written %q", got)
	}
	tellTermination(file, errors.New(strings.Repeat("x\xff", terminationLimit)))
	if got := read(); len(got) != terminationLimit || !strings.HasPrefix(got, "x?x?") {
		t.Errorf("it has written %d bytes", len(got))
	}
}
