package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	decide "volplane.dev/volplane/internal/decide/identity"
)

const life = 6 * 24 * time.Hour

// authority signs every request, in a test.
type authority struct {
	t   *testing.T
	key *ecdsa.PrivateKey
	// next are the results of the next requests, in order; later ones succeed.
	next []error
	// as is the name that it issues instead of the requested one.
	as string
	// keys are those that were signed, at is when.
	keys []string
	at   []time.Time
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t: t, key: key}
}

func (a *authority) ask(_ context.Context, request []byte) ([]byte, error) {
	block, _ := pem.Decode(request)
	q, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || q.CheckSignature() != nil {
		a.t.Errorf("request: %v", err)
		return nil, ErrRefused
	}
	der, err := x509.MarshalPKIXPublicKey(q.PublicKey)
	if err != nil {
		a.t.Error(err)
	}
	a.keys, a.at = append(a.keys, decide.Hash(der)), append(a.at, time.Now())
	if len(a.next) > 0 {
		err, a.next = a.next[0], a.next[1:]
		if err != nil {
			return nil, err
		}
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(a.keys))), Subject: q.Subject, NotAfter: time.Now().Add(life),
	}
	if a.as != "" {
		c.Subject.CommonName = a.as
	}
	if der, err = x509.CreateCertificate(rand.Reader, c, c, q.PublicKey, a.key); err != nil {
		a.t.Error(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func invitation(id string) *rest.Config {
	return &rest.Config{
		Host:        "https://127.0.0.1:1",
		BearerToken: decide.Token{Node: "n1", ID: strings.Repeat(id, 16), Secret: strings.Repeat("0", 64)}.String(),
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// mustJoin joins by an invitation, and refuses to fail.
func (a *authority) mustJoin(root, id string) *Identity {
	a.t.Helper()
	i, err := join(a.t.Context(), invitation(id), root, a.ask, quiet())
	if err != nil {
		a.t.Fatalf("invitation %s: %v", id, err)
	}
	return i
}

// asked checks how often a certificate was requested, and for how many keys.
func (a *authority) asked(times, keys int) {
	a.t.Helper()
	different := map[string]bool{}
	for _, k := range a.keys {
		different[k] = true
	}
	if len(a.keys) != times || len(different) != keys {
		a.t.Errorf("asked %d times for %d keys, want %d times for %d", len(a.keys), len(different), times, keys)
	}
}

// TestJoin: after a lost answer the request is repeated for the same key, also by the
// next process, and a node that has joined does not join again.
func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, root := newAuthority(t), t.TempDir()
		a.next = []error{errors.New("lost"), errors.New("lost")}
		killed, kill := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer kill()
		if _, err := join(killed, invitation("a"), root, a.ask, quiet()); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("without an answer: %v", err)
		}
		i := a.mustJoin(root, "a")
		a.asked(3, 1)
		if i.Node != "n1" || i.Config.BearerToken != "" || i.Config.CertFile != i.file.path ||
			i.Config.KeyFile != i.file.path {
			t.Errorf("identity %+v", i)
		}
		for path, mode := range map[string]os.FileMode{i.file.path: 0o600, filepath.Dir(i.file.path): 0o700} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v, %v; want mode %o", path, info, err, mode)
			}
		}
		if a.mustJoin(root, "a").file != i.file {
			t.Error("a second start has another identity")
		}
		a.asked(3, 1)
	})
}

// TestJoinAnew: a new invitation creates a new identity, which replaces the old one once
// it exists, and not if it is refused.
func TestJoinAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, root := newAuthority(t), t.TempDir()
		a.mustJoin(root, "a")
		a.next = []error{ErrRefused}
		if _, err := join(t.Context(), invitation("b"), root, a.ask, quiet()); !errors.Is(err, ErrRefused) ||
			!strings.Contains(err.Error(), "volplane invite n1") {
			t.Errorf("refused: %v", err)
		}
		a.mustJoin(root, "a")
		a.asked(2, 2)
		last := a.mustJoin(root, "c")
		a.asked(3, 3)
		if left, err := filepath.Glob(filepath.Join(root, "identity", "*")); err != nil || len(left) != 1 ||
			left[0] != last.file.path {
			t.Errorf("left %v, %v", left, err)
		}
	})
}

func TestJoinRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, root := newAuthority(t), t.TempDir()
		if _, err := join(t.Context(), &rest.Config{BearerToken: "eyJ.x.y"}, root, a.ask, quiet()); !errors.Is(err, errNone) {
			t.Errorf("a token that is no invitation: %v", err)
		}
		if _, err := join(t.Context(), invitation("a"), root, a.ask, quiet()); err != nil {
			t.Fatal(err)
		}
		<-time.After(life + time.Minute)
		if _, err := join(t.Context(), invitation("a"), root, a.ask, quiet()); !errors.Is(err, ErrExpired) ||
			!strings.Contains(err.Error(), "volplane invite n1") {
			t.Errorf("after the end: %v", err)
		}
		file := filepath.Join(root, "identity", strings.Repeat("a", 16)+".pem")
		if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := join(t.Context(), invitation("a"), root, a.ask, quiet()); err == nil ||
			!strings.Contains(err.Error(), file) {
			t.Errorf("damaged: %v", err)
		}
	})
	a := newAuthority(t)
	a.as = "system:node:n2"
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := certify(t.Context(), a.ask, "n1", key); err == nil || !strings.Contains(err.Error(), "n2") {
		t.Errorf("another node's certificate: %v", err)
	}
}

// TestKeep: a certificate is renewed when two thirds of its life are over, for a new key each time; a failed renewal is
// tried again in time, and the file always has a key with its certificate.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		i, err := join(t.Context(), invitation("a"), t.TempDir(), a.ask, quiet())
		if err != nil {
			t.Fatal(err)
		}
		i.ask = a.ask
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); i.Keep(ctx) }()
		begin := time.Now()
		<-time.After(life*2/3 - time.Minute)
		if len(a.keys) != 1 {
			t.Errorf("renewed too early")
		}
		a.next = []error{errors.New("down"), ErrRefused, errors.New("down")}
		<-time.After(time.Hour)
		synctest.Wait()
		if len(a.keys) != 5 || a.at[1].Sub(begin) != life*2/3 || a.at[4].Sub(a.at[3]) != 8*time.Minute {
			t.Errorf("asked at %v, want after %v and again until it went well", a.at, life*2/3)
		}
		<-time.After(20 * 24 * time.Hour)
		synctest.Wait()
		_, cert, _, err := i.file.read()
		if err != nil || time.Until(cert.NotAfter) < life/3 || !cert.NotAfter.Equal(i.end) {
			t.Errorf("the file: %v, %v", cert, err)
		}
		a.asked(10, 10)
		cancel()
		<-ended
	})
}
