package up

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/standalone/apiserver"
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

// A start that takes longer than patience is reported: each step, and at intervals that the step still lasts.
const (
	patience = 2 * time.Second
	remind   = 10 * time.Second
)

// starting is a start, which reports its steps while it takes long.
type starting struct {
	begun   time.Time
	step    atomic.Value
	stop    context.CancelFunc
	telling sync.WaitGroup
}

// begin begins a start.
func begin(ctx context.Context, out io.Writer) *starting {
	ctx, stop := context.WithCancel(ctx)
	s := &starting{begun: time.Now(), stop: stop}
	s.does("opening the data directory")
	s.telling.Go(func() { s.tell(ctx, out) })
	return s
}

// does sets the current step of the start.
func (s *starting) does(step string) { s.step.Store(step) }

// end ends the start, after which nothing of it is reported any more, and returns how long it took. It may be called
// again.
func (s *starting) end() time.Duration {
	took := time.Since(s.begun)
	s.stop()
	s.telling.Wait()
	return took
}

// tell writes the steps until ctx ends.
func (s *starting) tell(ctx context.Context, out io.Writer) {
	told, last := "", time.Time{}
	ticker := time.NewTicker(patience / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		step, _ := s.step.Load().(string)
		if time.Since(s.begun) < patience || step == told && time.Since(last) < remind {
			continue
		}
		fmt.Fprintf(out, "starting, %3.0f s: %s\n", time.Since(s.begun).Seconds(), step)
		told, last = step, time.Now()
	}
}
