package host

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/testkit/logged"
)

// identityUntil returns the identity of node n1 that ends at a time.
func identityUntil(t *testing.T, end time.Time) *rest.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:n1"}, NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &rest.Config{
		TLSClientConfig: rest.TLSClientConfig{CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})},
	}
}

// TestExpiry: an expired identity is refused; for a valid one a warning is logged a
// month before its expiry, and not earlier.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		config := identityUntil(t, now.Add(40*24*time.Hour))
		if name, err := nodeName(config); err != nil || name != "n1" {
			t.Errorf("the node is %q, %v", name, err)
		}
		if _, err := expiry(config, "f", "n1", now.Add(41*24*time.Hour)); !errors.Is(err, errExpired) ||
			!strings.Contains(err.Error(), "volplane invite n1") {
			t.Errorf("an identity that is over: %v", err)
		}
		remind, err := expiry(config, "f", "n1", now)
		if err != nil {
			t.Fatal(err)
		}
		var log logged.Text
		stop := remind(slog.New(slog.NewTextHandler(&log, nil)))
		defer stop()
		<-time.After(9 * 24 * time.Hour)
		synctest.Wait()
		if said := log.String(); said != "" {
			t.Errorf("too early: %s", said)
		}
		<-time.After(2 * 24 * time.Hour)
		synctest.Wait()
		if said := log.String(); !strings.Contains(said, "node=n1") {
			t.Errorf("not reminded: %q", said)
		}
	})
	if _, err := expiry(&rest.Config{BearerToken: "t"}, "f", "n1", time.Now()); err != nil {
		t.Errorf("a token: %v", err)
	}
}
