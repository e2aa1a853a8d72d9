package up

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/noderoot"
	"volplane.dev/volplane/standalone/pki"
)

// Invite returns a kubeconfig with which the node agent of that name can join the
// control plane with the data directory. server is the host, optionally with a port,
// by which the node reaches it; empty means the address used on this host. The
// invitation works once, during life. The control plane must be running.
func Invite(ctx context.Context, dataDir, node, server string, life time.Duration) ([]byte, error) {
	admin, client, err := administrator(dataDir)
	if err != nil {
		return nil, err
	}
	if node == noderoot.NameOf(noderoot.Of(dataDir)) {
		return nil, fmt.Errorf("node %s is the control plane's own, which needs no invitation: choose another name for the "+
			"other host", node)
	}
	address, err := serverURL(admin.Host, server)
	if err != nil {
		return nil, err
	}
	said, err := ask(ctx, client, identity.PathInvitation, identity.Invite{Node: node, Seconds: int64(life / time.Second)})
	if err != nil {
		return nil, fmt.Errorf("invite node %.80q: %w", node, err)
	}
	var invited identity.Invited
	if err := json.Unmarshal(said, &invited); err != nil {
		return nil, fmt.Errorf("invite node %s: %w", node, err)
	}
	return pki.Invitation(address, admin.CAData, identity.InvitedPrefix+node, invited.Token)
}

// Revoke revokes every certificate and invitation of a node. The control plane with the
// data directory must be running. It says whether there is a Node of that name: what was issued for one that was
// deleted is revoked, too. Revoke may be repeated.
func Revoke(ctx context.Context, dataDir, node string) (known bool, err error) {
	_, client, err := administrator(dataDir)
	if err != nil {
		return false, err
	}
	if _, err := ask(ctx, client, identity.PathRevocation, identity.Revoke{Node: node}); err != nil {
		return false, fmt.Errorf("revoke node %.80q: %w", node, err)
	}
	_, err = client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("node %s is revoked; look for the Node: %w", node, err)
	}
	return err == nil, nil
}

// administrator returns a client of the control plane with a data directory.
func administrator(dataDir string) (*rest.Config, kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, "admin.kubeconfig"))
	if err != nil {
		return nil, nil, fmt.Errorf("no control plane was ever started with data directory %s: %w; start it with "+
			"volplane up, or set its directory with --data-dir", dataDir, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("client of the administrator: %w", err)
	}
	return config, client, nil
}

// ask sends a request to the control plane.
func ask(ctx context.Context, client kubernetes.Interface, path string, what any) ([]byte, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	said, err := client.Discovery().RESTClient().Post().AbsPath(path).SetHeader("Content-Type",
		"application/json").Body(body).Do(ctx).Raw()
	var answered apierrors.APIStatus
	switch {
	case err == nil:
		return said, nil
	case errors.As(err, &answered):
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(said))
	}
	return nil, fmt.Errorf("%w; the control plane must be running: start it with volplane up", err)
}

// serverURL returns the URL of the API server for another host.
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
		return "", fmt.Errorf("server %.80q: %q is not a port", server, port)
	}
	if !isHost(host) {
		return "", fmt.Errorf("server %.80q is neither an address nor a host name", server)
	}
	return "https://" + net.JoinHostPort(host, port), nil
}

func isHost(s string) bool {
	return net.ParseIP(s) != nil || len(validation.IsDNS1123Subdomain(s)) == 0
}
