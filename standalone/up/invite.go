package up

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/standalone/pki"
)

// Invite returns the kubeconfig with which the node agent of that name joins
// the control plane over a data directory, at server: a host, perhaps with a
// port, by which the node reaches it; empty is the way from this host. The
// control plane may be running. It may be repeated: earlier invitations stay
// valid until they expire.
func Invite(dataDir, node, server string) ([]byte, error) {
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
	address, err := serverURL(admin.Host, server)
	if err != nil {
		return nil, err
	}
	return ca.Kubeconfig(address, user, identity)
}

// serverURL returns the address of the API server as another host sees it.
func serverURL(local, server string) (string, error) {
	if server == "" {
		return local, nil
	}
	u, err := url.Parse(local)
	if err != nil {
		return "", fmt.Errorf("address of the control plane: %w", err)
	}
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		host, port = strings.Trim(server, "[]"), u.Port()
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("server %.80q: %q is no port", server, port)
	}
	if !isHost(host) {
		return "", fmt.Errorf("server %.80q is neither an address nor a host name", server)
	}
	return "https://" + net.JoinHostPort(host, port), nil
}

func isHost(s string) bool {
	return net.ParseIP(s) != nil || len(validation.IsDNS1123Subdomain(s)) == 0
}
