package identity

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	decide "volplane.dev/volplane/internal/decide/identity"
)

// askLimit is the time limit of one request.
const askLimit = 30 * time.Second

// ErrRefused says that the server does not accept the node's identity. A repeated request would be
// refused, too.
var ErrRefused = errors.New("refused")

// asker sends a certificate signing request, and returns the answer.
type asker func(ctx context.Context, request []byte) ([]byte, error)

// newAsker returns an asker for a path of a server.
func newAsker(config *rest.Config, path string) (asker, error) {
	config = rest.CopyConfig(config)
	config.Timeout = askLimit
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("way to the API server: %w", err)
	}
	url := strings.TrimSuffix(config.Host, "/") + path
	return func(ctx context.Context, request []byte) ([]byte, error) {
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(request))
		if err != nil {
			return nil, fmt.Errorf("ask %s: %w", url, err)
		}
		q.Header.Set("Content-Type", "application/x-pem-file")
		answer, err := client.Do(q)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		said, err := io.ReadAll(io.LimitReader(answer.Body, maxSize))
		if err != nil {
			return nil, err
		}
		return said, answerError(answer.StatusCode, said)
	}, nil
}

// answerError returns the error for an answer that is a refusal.
func answerError(status int, said []byte) error {
	const most = 300
	what := strings.TrimSpace(string(said[:min(len(said), most)]))
	switch {
	case status == http.StatusOK:
		return nil
	case status == http.StatusUnauthorized:
		return ErrRefused
	case status >= 400 && status < 500 && status != http.StatusTooManyRequests && status != http.StatusConflict:
		return fmt.Errorf("%w: %q", ErrRefused, what)
	}
	return fmt.Errorf("the API server answers %d: %q", status, what)
}

// certify requests the certificate of a node's key, and returns it both parsed and as received.
func certify(ctx context.Context, ask asker, node string, key *ecdsa.PrivateKey) (*x509.Certificate, []byte, error) {
	q, err := request(pkix.Name{CommonName: decide.UserPrefix + node, Organization: []string{decide.NodesGroup}}, key)
	if err != nil {
		return nil, nil, err
	}
	said, err := ask(ctx, q)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	pair, err := tls.X509KeyPair(said, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
	if err != nil {
		return nil, nil, fmt.Errorf("the API server answers by no certificate for the key of this node: %w", err)
	}
	if name := pair.Leaf.Subject.CommonName; name != decide.UserPrefix+node {
		return nil, nil, fmt.Errorf("the API server answers by a certificate of %.80q, not of node %s", name, node)
	}
	return pair.Leaf, said, nil
}

// request returns a certificate signing request, which proves that this host has the key.
func request(name pkix.Name, key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: name}, key)
	if err != nil {
		return nil, fmt.Errorf("request for a certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}
