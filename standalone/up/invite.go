package up

import (
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/standalone/pki"
)

// Invite returns the kubeconfig with which the node agent of that name joins
// the control plane over a data directory. The control plane may be running.
func Invite(dataDir, node string) ([]byte, error) {
	if p := validation.IsDNS1123Subdomain(node); len(p) > 0 {
		return nil, fmt.Errorf("node name %.80q: %s", node, p[0])
	}
	path := filepath.Join(dataDir, "admin.kubeconfig")
	admin, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("no control plane has run over %s: %w; start one with volplane up, or name its directory with --data-dir", dataDir, err)
	}
	ca, err := pki.Open(filepath.Join(dataDir, "pki"))
	if err != nil {
		return nil, err
	}
	user := "system:node:" + node
	identity, err := ca.Client(user, "system:nodes")
	if err != nil {
		return nil, err
	}
	return ca.Kubeconfig(admin.Host, user, identity)
}
