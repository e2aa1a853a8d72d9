package volume

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/doors/mount8"
	"volplane.dev/volplane/internal/process/options"
)

// MountHost returns what a helper of mount(8) needs of this program. It finds its server as all commands do.
func MountHost(s shell.Streams, version string) mount8.Host {
	klog.SetLogger(logr.Discard())
	sh := shell.New(context.Background(), s, version, shell.Programs{})
	sh.Reach = sh.ReachAny
	sh.Flags.DataDir, sh.Flags.Named = options.DataDir(), func() bool { return false }
	return mount8.Host{
		Err: s.Err, Node: sh.ThisNode(), Why: shell.Answer, Explain: sh.Explain, Mounts: mount8.OfHost(),
		Client: func(kubeconfig string) (kubernetes.Interface, string, error) {
			sh.Flags.Kubeconfig = kubeconfig
			return sh.Client()
		},
		Kubeconfig: func(kubeconfig string) string {
			sh.Flags.Kubeconfig = kubeconfig
			return sh.Flags.File()
		},
	}
}
