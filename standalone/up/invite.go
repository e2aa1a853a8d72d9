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
	"volplane.dev/volplane/internal/process/noderoot"
	"volplane.dev/volplane/standalone/pki"
)

// Invite returns a kubeconfig with which a node agent can join, under the name node, the control plane of the data
// directory. server is the host, optionally with a port, at which the node reaches it; empty means the address used on
// this host. The invitation works once, during life. The control plane must be running.
func Invite(ctx context.Context, dataDir, node, server string, life time.Duration) ([]byte, error) {
	return invite(ctx, dataDir, server, identity.Invite{Node: node, Seconds: int64(life / time.Second)})
}

// InviteControlPlane returns a kubeconfig with which another host gets the keys of the control plane with the data
// directory. The objects must be in an etcd that others run; everything else is as with Invite.
func InviteControlPlane(ctx context.Context, dataDir, name, server string, life time.Duration) ([]byte, error) {
	return invite(ctx, dataDir, server,
		identity.Invite{Kind: identity.KindControlPlane, Node: name, Seconds: int64(life / time.Second)})
}

func invite(ctx context.Context, dataDir, server string, q identity.Invite) ([]byte, error) {
	admin, client, err := administrator(dataDir)
	if err != nil {
		return nil, err
	}
	if q.Node == noderoot.NameOf(noderoot.Of(dataDir)) {
		return nil, fmt.Errorf("node %s is the control plane's own, which needs no invitation: choose another name for the "+
			"other host", q.Node)
	}
	address, err := serverURL(admin.Host, server)
	if err != nil {
		return nil, err
	}
	said, err := ask(ctx, client, identity.PathInvitation, q)
	if err != nil {
		return nil, fmt.Errorf("invite %s %.80q: %w", q.Kind, q.Node, err)
	}
	var invited identity.Invited
	// The words of the decoder could have a part of the answer.
	if json.Unmarshal(said, &invited) != nil {
		return nil, fmt.Errorf("invite %s %s: the answer is not one of this version of volplane", q.Kind, q.Node)
	}
	// A control plane of an earlier version creates an invitation of a node for any request.
	if t, ok := identity.ParseToken(invited.Token); !ok || t.Kind != q.Kind {
		return nil, fmt.Errorf("invite %s %s: the control plane runs another version of volplane: restart it", q.Kind, q.Node)
	}
	return pki.Invitation(address, admin.CAData, q.Kind.Invited()+q.Node, invited.Token)
}

// Revoked is what is known of a name that is revoked.
type Revoked struct {
	identity.Revoked
	// Known means that a Node of the name exists: credentials issued for a deleted one are revoked, too.
	Known bool
}

// Revoke revokes every certificate and invitation of a name. The control plane with the data directory must be running.
// Revoke may be repeated.
func Revoke(ctx context.Context, dataDir, name string) (r Revoked, err error) {
	_, client, err := administrator(dataDir)
	if err != nil {
		return r, err
	}
	said, err := ask(ctx, client, identity.PathRevocation, identity.Revoke{Node: name})
	if err != nil {
		return r, fmt.Errorf("revoke node %.80q: %w", name, err)
	}
	// A control plane of an earlier version says nothing, and has invited nodes only.
	if err := json.Unmarshal(said, &r.Revoked); len(said) > 0 && err != nil {
		return r, fmt.Errorf("node %s is revoked; read the answer: %w", name, err)
	}
	_, err = client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return r, fmt.Errorf("node %s is revoked; get the Node: %w", name, err)
	}
	r.Known = err == nil
	return r, nil
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
