package mount

import (
	"testing"

	"volplane.dev/volplane/internal/volume"
)

// TestInUse: processes are named with their ids, and uses of the kernel by what they are; the users act next.
func TestInUse(t *testing.T) {
	was := volume.Because{Message: "busy", Next: volume.NodeAgent("n")}
	if got := InUse(was, "n", nil); got != was {
		t.Errorf("nothing holds it: %+v", got)
	}
	got := InUse(was, "n", []Holder{
		{Use: "loop device /dev/loop7"}, {PID: 5, Command: "sh", Use: "a copy", Namespace: "mnt:[1]"},
	})
	const want = "busy; in use by loop device /dev/loop7, process 5 (sh): a copy in mount namespace mnt:[1]"
	if got.Message != want || got.Next != volume.MountUser("n") {
		t.Errorf("%+v, want %q", got, want)
	}
}
