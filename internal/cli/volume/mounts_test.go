package volume

import (
	"testing"
)

// TestSpace: only a path at which something is mounted on this host has space of its own to report.
func TestSpace(t *testing.T) {
	for path, is := range map[string]bool{"/": true, t.TempDir(): false, "/nowhere": false, "": false} {
		if used, free := space(path); (used != nil) != is || (free != nil) != is {
			t.Errorf("%q: %v %v, want %t", path, used, free, is)
		}
	}
}
