package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/standalone/pki"
)

// extraInvitation is the key of the user's extra field with the used invitation.
const extraInvitation = "volplane.dev/invitation"

var errRevoked = errors.New("the node's certificate is revoked")

// shown returns the node's certificate of a request.
func shown(r *http.Request) (cert *x509.Certificate, node string, ok bool) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, "", false
	}
	cert = r.TLS.PeerCertificates[0]
	node, ok = strings.CutPrefix(cert.Subject.CommonName, identity.UserPrefix)
	return cert, node, ok
}

// Certificates wraps an authenticator of certificates and refuses revoked ones.
func (d *Members) Certificates(inner authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		answer, ok, err := inner.AuthenticateRequest(r)
		if err != nil || !ok {
			return answer, ok, err
		}
		if err := d.refuse(r); err != nil {
			return nil, false, err
		}
		return answer, true, nil
	})
}

// refuse returns an error if the node's certificate of a request is revoked.
func (d *Members) refuse(r *http.Request) error {
	cert, node, ok := shown(r)
	if !ok {
		return nil
	}
	given, err := pki.EpochOf(cert)
	if err != nil {
		return err
	}
	present, err := d.present(r.Context(), node)
	if err == nil && !present.Counts(given) {
		err = errRevoked
	}
	return err
}

// AuthenticateToken authenticates the token of an invitation.
func (d *Members) AuthenticateToken(ctx context.Context, text string) (*authenticator.Response, bool, error) {
	t, ok := identity.ParseToken(text)
	if !ok {
		return nil, false, nil
	}
	present, err := d.present(ctx, t.Node)
	if err != nil {
		return nil, false, err
	}
	i, _, err := d.stored(ctx, t.ID)
	if err == nil {
		err = i.Admit(t, present, time.Now())
	}
	if err != nil {
		return nil, false, err
	}
	group := identity.InvitedGroup
	if i.Kind == identity.KindControlPlane {
		group = identity.InvitedPlanesGroup
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name: i.Kind.Invited() + i.Node, Groups: []string{group},
		Extra: map[string][]string{extraInvitation: {t.ID}},
	}}, true, nil
}

// Authorizer allows users invited as nodes, and nodes, to request a certificate, and users invited as control planes to
// request the keys; the request itself is checked later.
func (d *Members) Authorizer() authorizer.Authorizer {
	may := map[string][]string{
		identity.PathCertificate:  {identity.InvitedGroup, identity.NodesGroup},
		identity.PathControlPlane: {identity.InvitedPlanesGroup},
	}
	return authorizer.AuthorizerFunc(
		func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			allowed := func(group string) bool { return slices.Contains(may[a.GetPath()], group) }
			if !a.IsResourceRequest() && a.GetVerb() == "post" && slices.ContainsFunc(a.GetUser().GetGroups(), allowed) {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		})
}

// visit is a request of a node that is in flight.
type visit struct {
	end  context.CancelCauseFunc
	cert *http.Request
}

// Guard ends the requests in flight of nodes whose certificates are revoked; a watch would
// otherwise continue. A control plane that was given up creates no Node.
func (d *Members) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := d.rejoins(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		_, node, ok := shown(r)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer d.enter(node, &visit{cancel, r})()
		// The certificate may have been revoked since its check.
		if err := d.refuse(r); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (d *Members) enter(node string, q *visit) (leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inFlight[node] == nil {
		d.inFlight[node] = map[*visit]struct{}{}
	}
	d.inFlight[node][q] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.inFlight[node], q)
		if len(d.inFlight[node]) == 0 {
			delete(d.inFlight, node)
		}
	}
}

// sweep ends every request with a revoked certificate.
func (d *Members) sweep() {
	d.mu.Lock()
	var all []*visit
	for _, of := range d.inFlight {
		for q := range of {
			all = append(all, q)
		}
	}
	d.mu.Unlock()
	for _, q := range all {
		if err := d.refuse(q.cert); err != nil && q.cert.Context().Err() == nil {
			q.end(fmt.Errorf("ended: %w", err))
		}
	}
}
