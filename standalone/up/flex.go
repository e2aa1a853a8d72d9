package up

import (
	"context"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/flex"
)

func (o Options) pluginDir() string {
	if o.PluginDir != "" {
		return o.PluginDir
	}
	return filepath.Join(o.DataDir, "volumeplugins")
}

// flex serves the FlexVolume drivers of this host. An error is only logged, because the other parts should keep
// running.
func (o Options) flex(ctx context.Context, admin kubernetes.Interface) error {
	err := os.ErrPermission
	if os.Geteuid() == 0 {
		err = flex.Bridge(ctx, flex.BridgeOptions{
			Node: o.Node, PluginDir: o.pluginDir(), RootDir: flex.Root(o.DataDir),
			SocketDir:   filepath.Join(o.nodeRoot(), "plugins"),
			RegistryDir: filepath.Join(o.nodeRoot(), "plugins_registry"), ConfigFile: o.FlexConfig, Client: admin,
			Objects: true, Log: o.Log,
		})
	}
	if err != nil && ctx.Err() == nil {
		o.Log.Error("FlexVolume drivers are not served", "err", err)
	}
	<-ctx.Done()
	return nil
}
