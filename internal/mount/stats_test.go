package mount

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestSharesBlocks: whether files share blocks is that of the filesystem.
func TestSharesBlocks(t *testing.T) {
	for mkfs, want := range map[string]bool{
		"mkfs.ext4 -q": false, "mkfs.xfs -q -m reflink=0": false, "mkfs.xfs -q": true,
	} {
		t.Run(mkfs, func(t *testing.T) {
			words := strings.Fields(mkfs)
			_, device := disk(t, 320)
			g, at := newGrove(t), t.TempDir()
			g.ok(tool(t.Context(), words[0], append(words[1:], device)...))
			g.ok(Device(t.Context(), device, at, strings.TrimPrefix(words[0], "mkfs."), nil))
			defer func() { g.ok(Unmount(at)) }()
			if got, err := SharesBlocks(at); got != want || err != nil {
				t.Errorf("%v, %v; want %v", got, err, want)
			}
		})
	}
	if _, err := SharesBlocks(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("of a directory that does not exist it is known")
	}
}
