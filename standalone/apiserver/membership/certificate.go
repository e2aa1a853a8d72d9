package membership

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/standalone/pki"
)

// certificate issues a certificate for a key that a node has created.
func (d *Members) certificate(r *http.Request, body []byte) ([]byte, error) {
	who, ok := request.UserFrom(r.Context())
	if !ok {
		return nil, refuseWith(http.StatusForbidden, "the request has no user")
	}
	asked, key, err := requested(body)
	if err != nil {
		return nil, err
	}
	node, epoch, err := d.entitled(r, who, asked, key)
	if err != nil {
		return nil, err
	}
	return d.ca.Node(node, epoch, key)
}

// entitled returns the node for which a user may get a certificate: the node of the
// invitation, or the node of a valid certificate.
func (d *Members) entitled(
	r *http.Request, who user.Info, asked string, key *ecdsa.PublicKey,
) (string, identity.Epoch, error) {
	node, invited := strings.CutPrefix(who.GetName(), identity.KindNode.Invited())
	cert, own, has := shown(r)
	switch id := who.GetExtra()[extraInvitation]; {
	case invited && len(id) == 1:
		if asked != identity.UserPrefix+node {
			return "", 0, refuseWith(http.StatusForbidden, "the invitation is for node %s, not for user %.80q", node, asked)
		}
		i, err := d.spend(r.Context(), id[0], identity.KindNode, key)
		return i.Node, i.Epoch, err
	case has && who.GetName() == cert.Subject.CommonName:
		if asked != who.GetName() {
			return "", 0, refuseWith(http.StatusForbidden, "the certificate is for node %s, not for user %.80q", own, asked)
		}
		epoch, err := pki.EpochOf(cert)
		return own, epoch, err
	}
	return "", 0, refuseWith(http.StatusForbidden, "user %.80q has neither an invitation nor a node's certificate",
		who.GetName())
}

// spend uses an invitation of a kind for a key.
func (d *Members) spend(
	ctx context.Context, id string, kind identity.Kind, key *ecdsa.PublicKey,
) (identity.Invitation, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return identity.Invitation{}, refuseWith(http.StatusBadRequest, "public key: %w", err)
	}
	return d.use(ctx, id, kind, identity.Hash(der))
}

// requested parses a certificate request and returns the name and the public key. The
// signature proves the possession of the private key.
func requested(body []byte) (string, *ecdsa.PublicKey, error) {
	block, rest := pem.Decode(body)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return "", nil, refuseWith(http.StatusBadRequest, "not one request for a certificate in PEM")
	}
	q, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return "", nil, refuseWith(http.StatusBadRequest, "request for a certificate: %w", err)
	}
	if err := q.CheckSignature(); err != nil {
		return "", nil, refuseWith(http.StatusBadRequest, "request for a certificate: %w", err)
	}
	key, ok := q.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return "", nil, refuseWith(http.StatusBadRequest, "the key is not an ECDSA key over P-256")
	}
	return q.Subject.CommonName, key, nil
}
