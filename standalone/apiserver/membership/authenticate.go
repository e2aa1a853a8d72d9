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

// extraInvitation is the key under which a user has the invitation shown.
const extraInvitation = "volplane.dev/invitation"

var errRevoked = errors.New("the node's certificate was taken back")

// shown returns the certificate of a node that a request came with.
func shown(r *http.Request) (cert *x509.Certificate, node string, ok bool) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, "", false
	}
	cert = r.TLS.PeerCertificates[0]
	node, ok = strings.CutPrefix(cert.Subject.CommonName, identity.UserPrefix)
	return cert, node, ok
}

// Certificates refuses what another authenticator of certificates accepts, when
// it was taken back.
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

// refuse says whether a request comes with a node's certificate that does not
// count any more.
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

// AuthenticateToken knows who shows an invitation.
func (d *Members) AuthenticateToken(ctx context.Context, text string) (*authenticator.Response, bool, error) {
	t, ok := identity.ParseToken(text)
	if !ok {
		return nil, false, nil
	}
	present, err := d.present(ctx, t.Node)
	if err != nil {
		return nil, false, err
	}
	i, _, err := d.kept(ctx, t.ID)
	if err == nil {
		err = i.Admit(t, present, time.Now())
	}
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name: identity.InvitedPrefix + t.Node, Groups: []string{identity.InvitedGroup},
		Extra: map[string][]string{extraInvitation: {t.ID}},
	}}, true, nil
}

// Authorizer lets those who are invited, and nodes, ask for a certificate; what
// they get is decided there.
func (d *Members) Authorizer() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(
		func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			groups := a.GetUser().GetGroups()
			mine := !a.IsResourceRequest() && a.GetPath() == identity.PathCertificate && a.GetVerb() == "post"
			if mine && (slices.Contains(groups, identity.InvitedGroup) || slices.Contains(groups, identity.NodesGroup)) {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		})
}

// visit is a request of a node that is under way.
type visit struct {
	end  context.CancelCauseFunc
	cert *http.Request
}

// Guard ends what nodes have under way when their certificates are taken back: a
// watch would go on for as long as it likes.
func (d *Members) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, node, ok := shown(r)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer d.enter(node, &visit{cancel, r})()
		// It may have been taken back since it was looked at.
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
	if d.underWay[node] == nil {
		d.underWay[node] = map[*visit]struct{}{}
	}
	d.underWay[node][q] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.underWay[node], q)
		if len(d.underWay[node]) == 0 {
			delete(d.underWay, node)
		}
	}
}

// sweep ends every request whose certificate does not count any more.
func (d *Members) sweep() {
	d.mu.Lock()
	var all []*visit
	for _, of := range d.underWay {
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
