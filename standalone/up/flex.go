package up

import (
	"context"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/app"
)

func (o Options) pluginDir() string {
	if o.PluginDir != "" {
		return o.PluginDir
	}
	return filepath.Join(o.DataDir, "volumeplugins")
}

// flex serves the FlexVolume drivers of this host. Where that cannot be, all
// else goes on.
func (o Options) flex(ctx context.Context, admin kubernetes.Interface) error {
	err := os.ErrPermission
	if os.Geteuid() == 0 {
		err = app.FlexBridge(ctx, app.FlexBridgeOptions{
			Node: o.Node, PluginDir: o.pluginDir(), RootDir: app.FlexRoot(o.DataDir), SocketDir: filepath.Join(o.nodeRoot(), "plugins"),
			RegistryDir: filepath.Join(o.nodeRoot(), "plugins_registry"), ConfigFile: o.FlexConfig, Client: admin, Objects: true, Log: o.Log,
		})
	}
	if err != nil && ctx.Err() == nil {
		o.Log.Error("FlexVolume drivers are not served", "err", err)
	}
	<-ctx.Done()
	return nil
}
