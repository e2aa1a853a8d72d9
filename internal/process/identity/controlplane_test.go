package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	decide "volplane.dev/volplane/internal/decide/identity"
)

// keyHolder is a control plane that hands out its keys, in a test.
type keyHolder struct {
	t *testing.T
	// next are the results of the next requests, in order; later ones succeed.
	next []error
	said string
	// names and keys are those of the requests.
	names []string
	keys  map[string]bool
}

func (h *keyHolder) ask(_ context.Context, request []byte) ([]byte, error) {
	block, _ := pem.Decode(request)
	q, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || q.CheckSignature() != nil {
		h.t.Fatalf("request: %v", err)
	}
	h.names, h.keys[string(q.RawSubjectPublicKeyInfo)] = append(h.names, q.Subject.CommonName), true
	if len(h.next) > 0 {
		err, h.next = h.next[0], h.next[1:]
		if err != nil {
			return nil, err
		}
	}
	return []byte(h.said), nil
}

func planeInvitation() *rest.Config {
	return &rest.Config{Host: "https://one:6771", BearerToken: decide.Token{
		Kind: decide.KindControlPlane, Node: "two", ID: strings.Repeat("a", 16), Secret: strings.Repeat("0", 64),
	}.String()}
}

// TestKeysAfterALostAnswer: the request is repeated for the same key, also by the next process.
func TestKeysAfterALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("lost")
		h := &keyHolder{t: t, keys: map[string]bool{}, said: `{"prefix":"/p"}`, next: []error{lost, lost}}
		dir := filepath.Join(t.TempDir(), "joining")
		killed, kill := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer kill()
		if _, err := keys(killed, planeInvitation(), dir, h.ask, quiet()); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("without an answer: %v", err)
		}
		for range 2 {
			if k, err := keys(t.Context(), planeInvitation(), dir, h.ask, quiet()); err != nil || k.Prefix != "/p" {
				t.Errorf("%v, %v", k, err)
			}
		}
		if len(h.keys) != 1 || len(h.names) != 4 || h.names[0] != "volplane:control-plane:two" {
			t.Errorf("%d keys, requests by %q", len(h.keys), h.names)
		}
	})
}

// TestKeysRefused: an error that cannot go away ends the start, says what to do, and shows nothing of an answer.
func TestKeysRefused(t *testing.T) {
	untrusted := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	for name, c := range map[string]struct {
		err  error
		said string
		want []string
	}{
		"an invitation that was used": {
			fmt.Errorf("%w: %q", ErrRefused, "used already"), "",
			[]string{"used already", "volplane invite --control-plane two"},
		},
		"another authority": {
			fmt.Errorf("ask: %w", untrusted), "",
			[]string{"another control plane than the one at https://one:6771", "--tls-san"},
		},
		"another version": {nil, `sentinel`, []string{"the same version on both hosts"}},
		"half an answer":  {nil, `{"caKey":"sentinel"`, []string{"the same version on both hosts"}},
		"another type":    {nil, `{"caKey":["sentinel"]}`, []string{"the same version on both hosts"}},
	} {
		h := &keyHolder{t: t, keys: map[string]bool{}, said: c.said, next: []error{c.err}}
		_, err := keys(t.Context(), planeInvitation(), t.TempDir(), h.ask, quiet())
		if !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "sentinel") {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range append(c.want, "join as control plane two: ") {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
	if _, err := keys(t.Context(), invitation("a"), t.TempDir(), nil, quiet()); !errors.Is(err, errNone) {
		t.Errorf("an invitation of a node: %v", err)
	}
	if _, err := join(t.Context(), planeInvitation(), t.TempDir(), nil, quiet()); !errors.Is(err, errNone) {
		t.Errorf("a node by an invitation of a control plane: %v", err)
	}
}
