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

// askLimit bounds one request.
const askLimit = 30 * time.Second

// ErrRefused says that the server does not take the node for who it says it is.
// To ask again is of no use.
var ErrRefused = errors.New("refused")

// asker sends a request for a certificate, and returns the certificate.
type asker func(ctx context.Context, request []byte) ([]byte, error)

// askBy returns the way to a server.
func askBy(config *rest.Config) (asker, error) {
	config = rest.CopyConfig(config)
	config.Timeout = askLimit
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("way to the API server: %w", err)
	}
	url := strings.TrimSuffix(config.Host, "/") + decide.PathCertificate
	return func(ctx context.Context, request []byte) ([]byte, error) {
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(request))
		if err != nil {
			return nil, fmt.Errorf("ask for a certificate: %w", err)
		}
		q.Header.Set("Content-Type", "application/x-pem-file")
		answer, err := client.Do(q)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		said, err := io.ReadAll(io.LimitReader(answer.Body, largest))
		if err != nil {
			return nil, err
		}
		return said, judge(answer.StatusCode, said)
	}, nil
}

// judge makes an error of an answer that is none.
func judge(status int, said []byte) error {
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

// certify has a node's key certified. It returns the certificate also as it
// came.
func certify(ctx context.Context, ask asker, node string, key *ecdsa.PrivateKey) (*x509.Certificate, []byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: decide.UserPrefix + node, Organization: []string{decide.NodesGroup},
	}}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("request for a certificate: %w", err)
	}
	said, err := ask(ctx, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
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
