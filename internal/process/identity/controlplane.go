package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/client-go/rest"

	decide "volplane.dev/volplane/internal/decide/identity"
)

// errUntrusted says that the server is not the one that issued the invitation, or has another address.
var errUntrusted = errors.New("the server is not trusted")

// Keys returns the keys of a control plane for an invitation. It retries until the server answers or ctx ends. It may
// be repeated with the same dir, which holds the key by which the server recognizes this host after a lost response.
func Keys(ctx context.Context, config *rest.Config, dir string, log *slog.Logger) (decide.Keys, error) {
	ask, err := newAsker(config, decide.PathControlPlane)
	if err != nil {
		return decide.Keys{}, err
	}
	return keys(ctx, config, dir, ask, log)
}

func keys(
	ctx context.Context, config *rest.Config, dir string, ask asker, log *slog.Logger,
) (k decide.Keys, err error) {
	t, ok := decide.ParseToken(config.BearerToken)
	if !ok || t.Kind != decide.KindControlPlane {
		return k, errNone
	}
	key, _, _, err := fileOf(dir, t.ID).begin()
	if err != nil {
		return k, fmt.Errorf("join as %s %s: %w", t.Kind, t.Node, err)
	}
	q, err := request(pkix.Name{CommonName: t.Kind.Requested() + t.Node}, key)
	if err != nil {
		return k, err
	}
	err = retry(ctx, log.With("name", t.Node), func() error {
		said, err := ask(ctx, q)
		var untrusted *tls.CertificateVerificationError
		switch {
		case errors.As(err, &untrusted):
			return fmt.Errorf("%w: %w: %w", ErrRefused, errUntrusted, err)
		case err != nil:
			return err
		}
		// The words of the decoder could have a part of the answer.
		if json.Unmarshal(said, &k) != nil {
			return fmt.Errorf("%w: the answer is not one of this version of volplane: use the same version on both hosts",
				ErrRefused)
		}
		return nil
	})
	return k, explain(t, config.Host, err)
}

// explain says what to do when a host cannot join as a control plane.
func explain(t decide.Token, host string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errUntrusted):
		return fmt.Errorf("join as %s %s: %w: the invitation is of another control plane than the one at %s, or that one "+
			"has to be started with --tls-san and this name: get a new invitation with 'volplane invite --control-plane %s "+
			"--server HOST'", t.Kind, t.Node, err, host, t.Node)
	case errors.Is(err, ErrRefused):
		return fmt.Errorf("join as %s %s: %w: if the invitation has expired, was used by another host or was revoked, get a "+
			"new one with 'volplane invite --control-plane %s' on the host of a control plane", t.Kind, t.Node, err, t.Node)
	}
	return fmt.Errorf("join as %s %s: %w", t.Kind, t.Node, err)
}
