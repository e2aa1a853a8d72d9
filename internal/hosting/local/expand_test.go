package local

import (
	"testing"

	"google.golang.org/grpc/codes"
)

// TestGrowReadOnly: a volume grows also where only its Pod may not write, and otherwise says why it does not.
func TestGrowReadOnly(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()
			w := newPoolDriver(t)
			size := smallest(fsType)
			d := w.create("v", size, fsType, nil)
			w.ok(d.attach())
			w.ok(d.stage())
			w.ok(d.publish(true))
			before := d.size()
			d.expand(2 * size)
			if err := d.nodeExpand(); err != nil && fsType != "ext4" {
				t.Error(err)
			} else if got := d.size(); err == nil && got < before+size*8/10 {
				t.Errorf("%d bytes before, %d after", before, got)
			}
			d.rest()
			w.ok(d.attach())
			w.ok(d.stage("ro"))
			w.ok(d.publish(true))
			d.expand(3 * size)
			w.refused("expand what is read-only", d.nodeExpand(), codes.FailedPrecondition, d.id, "mounted read-only")
			d.end()
			w.empty()
		})
	}
}
