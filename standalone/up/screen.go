package up

import (
	"fmt"
	"os"
	"strings"
	"time"

	"volplane.dev/volplane/standalone/apiserver"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/parts"
)

// controllersPart is the name of the part that runs the controllers.
const controllersPart = "controllers"

// running returns the names of what runs: the parts, with the controllers in the place of their part.
func running(all []parts.Part) []string {
	var out []string
	for _, p := range all {
		if p.Name == controllersPart {
			out = append(out, app.ControllerNames()...)
			continue
		}
		out = append(out, p.Name)
	}
	return out
}

// listed returns words as a list in lines that stand below each other, after an indented title.
func listed(words []string) string {
	const columns, indent = 64, "\n              "
	var lines []string
	line := ""
	for i, w := range words {
		if i < len(words)-1 {
			w += ","
		}
		switch {
		case line == "":
			line = w
		case len(line)+1+len(w) > columns:
			lines, line = append(lines, line), w
		default:
			line += " " + w
		}
	}
	return strings.Join(append(lines, line), indent)
}

// copies says what a snapshot or clone of the bundled driver costs.
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
	return "are full copies, as are clones; a mounted volume is frozen meanwhile"
}

// screen prints the summary: addresses, directories, what runs and next steps.
func screen(o Options, server *apiserver.Server, took time.Duration, runs []string) {
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
  runs        %s
%s
Next steps, in another terminal:
  volplane create NAME --size 10Gi    # ask for a volume by name: a claim
  volplane mount NAME DIR             # mount it at a path of this host
  volplane why pvc/NAME               # explain what it waits for
  export KUBECONFIG=%s    # for kubectl
  volplane invite NODE > NODE.kubeconfig; volplane node --join NODE.kubeconfig
`, o.Version, took.Seconds(), server.Addr(), server.AdminKubeconfig(), o.DataDir, o.pool(), copies(o), o.Node, o.nodeRoot(), o.pluginDir(),
		listed(runs), root, server.AdminKubeconfig())
}
