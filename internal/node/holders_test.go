package node

import (
	"fmt"
	"os/exec"
	"testing"

	"volplane.dev/volplane/internal/node/uses"
)

// TestWhoHoldsTheMount: a volume cannot be unmounted, and an event of the terminating Pod names the
// process that uses it, also in another mount namespace, but not its arguments.
func TestWhoHoldsTheMount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.tune = func(o *Options) { o.TrustDrivers = false }
	d := newFakeDriver(driverName, w.dir)
	w.onDisk(d)
	d.start(t)
	w.run()
	w.mountVolume()
	at := uses.TargetPath(w.dir, "uid-p", "pv-a", false)
	holder := exec.CommandContext(t.Context(), "sh", "-c",
		`exec 3>"$1/file"; exec unshare --mount sh -c 'echo ready; read x; : hunter2'`, "sh", at)
	stdin, err := holder.StdinPipe()
	w.must(nil, err)
	stdout, err := holder.StdoutPipe()
	w.must(nil, err)
	w.must(nil, holder.Start())
	end := func() { _ = stdin.Close(); _ = holder.Wait() }
	t.Cleanup(end)
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	w.terminate("p")
	used := fmt.Sprintf("in use by process %d (sh): an open file in mount namespace mnt:[", holder.Process.Pid)
	w.heard("Pod", "p", "FailedUnmount", used, "user of the mount on node n1")
	w.checkNotDisclosed("hunter2", "")
	end()
	w.awaitDeletion("p")
	w.empty()
}
