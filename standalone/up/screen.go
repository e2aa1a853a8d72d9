package up

import (
	"fmt"
	"os"
	"time"

	"volplane.dev/volplane/standalone/apiserver"

	"volplane.dev/volplane/internal/mount"
)

// copies describes the cost of a snapshot or clone of the bundled driver.
func copies(o Options) string {
	dir := o.pool()
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		dir = o.DataDir // the pool is made there later
	}
	switch shared, err := mount.SharesBlocks(dir); {
	case err != nil:
		return "share blocks with their volume where the pool's filesystem can, as do clones"
	case shared:
		return "share blocks with their volume, as do clones"
	}
	return "are full copies, as are clones; a mounted volume is frozen during the copy"
}

// screen prints the summary: addresses, directories and next steps.
func screen(o Options, server *apiserver.Server, took time.Duration) {
	root := ""
	if os.Geteuid() != 0 {
		root = "\n  not root:   the API works, but nothing can be mounted; start as root to mount volumes\n"
	}
	fmt.Fprintf(o.Out, `volplane %s is up (%.1f s)

  API server  https://%s
  kubeconfig  %s
  data        %s
  pool        %s
  snapshots   %s
  node        %s, mounts below %s
  class       local (default), driver local.volplane.dev
  plugins     FlexVolume drivers of %s
%s
Next steps, in another terminal:
  volplane create NAME --size 10Gi    # ask for a volume by name: a claim
  volplane mount NAME DIR             # mount it at a path of this host
  volplane why pvc/NAME               # explain what it waits for
  export KUBECONFIG=%s    # for kubectl
  volplane invite NODE > NODE.kubeconfig; volplane node --join NODE.kubeconfig
`, o.Version, took.Seconds(), server.Addr(), server.AdminKubeconfig(), o.DataDir, o.pool(), copies(o), o.Node, o.nodeRoot(), o.pluginDir(),
		root, server.AdminKubeconfig())
}
