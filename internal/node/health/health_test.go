package health

import (
	"testing"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
)

// TestReadOnlyMayBeFull: a volume that nobody can write to has no room to run out of, whatever Pod is looked at first.
func TestReadOnlyMayBeFull(t *testing.T) {
	for name, c := range map[string]struct {
		points   []mount.Point
		readOnly bool
	}{
		"all may write":         {[]mount.Point{{Path: "/1"}, {Path: "/2"}}, false},
		"the second may":        {[]mount.Point{{Path: "/1", ReadOnly: true}, {Path: "/2"}}, false},
		"none may":              {[]mount.Point{{Path: "/1", ReadOnly: true}, {Path: "/2", ReadOnly: true}}, true},
		"the filesystem is so":  {[]mount.Point{{Path: "/1", NoWrites: true}, {Path: "/2", NoWrites: true}}, true},
		"the writer is missing": {[]mount.Point{{Path: "/1", ReadOnly: true}}, true},
	} {
		points := map[string]mount.Point{}
		for _, p := range c.points {
			points[p.Path] = p
		}
		r := &decide.Record{Targets: []decide.Target{
			{Path: "/1", Phase: decide.Published, ReadOnly: true}, {Path: "/2", Phase: decide.Published},
		}}
		now := Stats{Usage: mount.Usage{Total: 100, Used: 100, Inodes: 10, InodesUsed: 10}}
		state, inspected := New(Options{}).inspect(t.Context(), r, "/1", points, &now, false)
		if now.ReadOnly != c.readOnly || (state.Total == 0) != c.readOnly || !inspected {
			t.Errorf("%s: read-only %t, %+v", name, now.ReadOnly, state)
		}
	}
}

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
