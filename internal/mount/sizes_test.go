package mount

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestSize: the size of a filesystem is the one with which it was created, including its own overhead, or to which it
// was grown, even before that is written to its superblock.
func TestSize(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			file, device := disk(t, 320)
			if err := Format(t.Context(), device, fsType); err != nil {
				t.Fatal(err)
			}
			target := mounted(t, device, fsType)
			at, there, err := At(target)
			if err != nil || !there {
				t.Fatalf("mounted %v, %v", there, err)
			}
			is := func(filesystem, size int64) {
				t.Helper()
				gotFS, got, err := Size(at)
				if gotFS != filesystem<<20 || got != size<<20 || err != nil {
					t.Errorf("filesystem of %d MiB on %d, %v; want %d on %d", gotFS>>20, got>>20, err, filesystem, size)
				}
			}
			is(320, 320)
			if err := os.Truncate(file, 352<<20); err != nil {
				t.Fatal(err)
			}
			if err := LoopResize(device); err != nil {
				t.Fatal(err)
			}
			is(320, 352)
			switch err := Expand(t.Context(), device, target, fsType); {
			case errors.Is(err, ErrExpandLater):
				return
			case err != nil:
				t.Fatal(err)
			}
			is(352, 352)
		})
	}
}

// TestHostileSize: a superblock with impossible values is not accepted as a size.
func TestHostileSize(t *testing.T) {
	for argues, c := range map[string]struct {
		magic  uint16
		blocks uint64
		shift  uint32
	}{
		"it is of another filesystem":      {0, 1, 2},
		"it has no blocks":                 {0xEF53, 0, 2},
		"its blocks are larger than any":   {0xEF53, 1, 7},
		"its size is more than a number":   {0xEF53, 1 << 48, 6},
		"its size is a negative number":    {0xEF53, 1<<47 + 1, 6},
		"its blocks are more than numbers": {0xEF53, 1<<64 - 1, 0},
	} {
		var super [1024 + 0x154]byte
		binary.LittleEndian.PutUint16(super[1024+0x38:], c.magic)
		binary.LittleEndian.PutUint32(super[1024+0x4:], uint32(c.blocks))
		binary.LittleEndian.PutUint32(super[1024+0x150:], uint32(c.blocks>>32))
		binary.LittleEndian.PutUint32(super[1024+0x18:], c.shift)
		path := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(path, super[:], 0o600); err != nil {
			t.Fatal(err)
		}
		if size, err := ext4Size(path); err == nil {
			t.Errorf("%s: %d bytes", argues, size)
		}
	}
}
