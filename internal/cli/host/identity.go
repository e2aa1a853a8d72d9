package host

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	decide "volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/process/identity"
)

// reminder is how long before the expiry of a node's identity a warning is logged.
const reminder = 30 * 24 * time.Hour

var (
	errNoIdentity = errors.New("the file contains no certificate of a node")
	errExpired    = errors.New("identity expired")
)

// certificate returns the client certificate of a configuration.
func certificate(config *rest.Config) (*x509.Certificate, error) {
	data := config.CertData
	if len(data) == 0 && config.CertFile != "" {
		var err error
		if data, err = os.ReadFile(config.CertFile); err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errNoIdentity
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	return cert, nil
}

// nodeName returns the name in the certificate of a node's identity.
func nodeName(config *rest.Config) (string, error) {
	cert, err := certificate(config)
	if err != nil {
		return "", err
	}
	name, ok := strings.CutPrefix(cert.Subject.CommonName, "system:node:")
	if !ok {
		return "", errNoIdentity
	}
	return name, nil
}

// expiry refuses an expired identity. For a certificate it returns a function that
// starts a timer, which logs a warning before the expiry, and returns how to stop
// the timer. Other identities, such as tokens, get no warning.
func expiry(
	config *rest.Config, file, node string, now time.Time,
) (remind func(*slog.Logger) (stop func()), err error) {
	cert, err := certificate(config)
	if err != nil {
		//nolint:nilerr // it is a token or another identity without a certificate
		return func(*slog.Logger) func() { return func() {} }, nil
	}
	if now.After(cert.NotAfter) {
		return nil, fmt.Errorf("%s: %w on %s: get a new one with 'volplane invite %s'", file, errExpired,
			cert.NotAfter.Format(time.DateOnly), node)
	}
	return func(log *slog.Logger) func() {
		timer := time.AfterFunc(max(0, cert.NotAfter.Add(-reminder).Sub(now)), func() {
			log.Warn("the identity of this node expires soon: get a new one with 'volplane invite' and restart the agent with "+
				"it; mounts stay",
				"node", node, "expires", cert.NotAfter.Format(time.DateOnly), "file", file)
		})
		return func() { timer.Stop() }
	}, nil
}

// identify determines the name of this node and returns its client configuration:
// with an invitation, one with a new certificate, which keep renews; otherwise that
// of the file.
func identify(
	ctx context.Context, n *nodeFlags, root string, log *slog.Logger,
) (config *rest.Config, keep func(context.Context), err error) {
	config, err = clientcmd.BuildConfigFromFlags("", n.join)
	if err != nil {
		return nil, nil, fmt.Errorf("read identity: %w", err)
	}
	name, kind, invited := identity.Invited(config)
	if kind == decide.KindControlPlane {
		return nil, nil, fmt.Errorf("%s invites a %s: start one with 'volplane up --join %s', or get an invitation of a "+
			"node with 'volplane invite NODE'", n.join, kind, n.join)
	}
	if !invited {
		name, err = nodeName(config)
	}
	switch {
	case n.name == "" && err != nil:
		return nil, nil, fmt.Errorf("find the name of this node: %w; set it with --name", err)
	case n.name == "":
		n.name = name
	case err == nil && n.name != name:
		return nil, nil, fmt.Errorf("%s is for node %s, not for %s: get the right file with 'volplane invite %s'", n.join,
			name, n.name, n.name)
	}
	if invited {
		i, err := identity.Join(ctx, config, root, log)
		if err != nil {
			return nil, nil, err
		}
		return i.Config, i.Keep, nil
	}
	remind, err := expiry(config, n.join, n.name, time.Now())
	if err != nil {
		return nil, nil, err
	}
	return config, func(ctx context.Context) {
		defer remind(log)()
		<-ctx.Done()
	}, nil
}
