package health

import (
	"testing"

	"volplane.dev/volplane/internal/mount"
)

// TestReadOnlyIsNoIllness: what a driver mounts read-only, or a Pod wants so, has
// not become so by itself, nor has what cannot be written to at all.
func TestReadOnlyIsNoIllness(t *testing.T) {
	for name, c := range map[string]struct {
		before, now mount.Point
		want        bool
	}{
		"written to": {mount.Point{Type: "ext4"}, mount.Point{Type: "ext4"}, false},
		"turned":     {mount.Point{Type: "ext4"}, mount.Point{Type: "ext4", NoWrites: true}, true},
		"turned with its mount": {
			mount.Point{Type: "ext4"}, mount.Point{Type: "ext4", NoWrites: true, ReadOnly: true}, true,
		},
		"turned before the first look": {
			mount.Point{Type: "ext4", NoWrites: true}, mount.Point{Type: "ext4", NoWrites: true}, true,
		},
		"mounted read-only": {mount.Point{
			Type: "ext4", NoWrites: true, ReadOnly: true,
		}, mount.Point{Type: "ext4", NoWrites: true, ReadOnly: true}, false},
		"shown read-only": {
			mount.Point{Type: "ext4", ReadOnly: true}, mount.Point{Type: "ext4", ReadOnly: true}, false,
		},
		"an image": {
			mount.Point{Type: "squashfs", NoWrites: true}, mount.Point{Type: "squashfs", NoWrites: true}, false,
		},
		"of a strange kind, and turned": {mount.Point{Type: "fuse.x"}, mount.Point{Type: "fuse.x", NoWrites: true}, true},
	} {
		m := New(Options{})
		m.becameReadOnly("/t", map[string]mount.Point{"/t": c.before})
		if got := m.becameReadOnly("/t", map[string]mount.Point{"/t": c.now}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
