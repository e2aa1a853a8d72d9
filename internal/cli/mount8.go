//go:build linux

package cli

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"volplane.dev/volplane/internal/door/mount8"
	"volplane.dev/volplane/internal/program"
)

// mountHost returns what a helper of mount(8) needs of this program. It finds its server as all commands do.
func mountHost(s Streams, version string) mount8.Host {
	klog.SetLogger(logr.Discard())
	sh := newShell(context.Background(), s, version, Programs{})
	sh.reach = sh.reachAny
	sh.flags.dataDir, sh.flags.named = program.DataDir(), func() bool { return false }
	return mount8.Host{
		Err: s.Err, Node: sh.thisNode(), Why: sh.answer, Explain: sh.explain, Mounts: mount8.OfHost(),
		Client: func(kubeconfig string) (kubernetes.Interface, string, error) {
			sh.flags.kubeconfig = kubeconfig
			return sh.client()
		},
		Kubeconfig: func(kubeconfig string) string {
			sh.flags.kubeconfig = kubeconfig
			return sh.flags.file()
		},
	}
}
