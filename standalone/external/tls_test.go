package external

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestExpired: a client whose certificate has expired does not even connect.
func TestExpired(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	dir := t.TempDir()
	both := filepath.Join(dir, "client")
	o := Options{CAFile: filepath.Join(dir, "ca"), CertFile: both, KeyFile: both}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.AddDate(-1, 0, 0), NotAfter: end}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	pair := append(slices.Clone(public), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bare})...)
	for path, data := range map[string][]byte{o.CAFile: public, o.CertFile: pair} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.tls(end); err != nil {
		t.Error("the last second:", err)
	}
	if _, err := o.tls(end.Add(time.Second)); err == nil ||
		!strings.Contains(err.Error(), "has expired on 2026-01-02T03:04:05Z: renew it") {
		t.Error("a second later:", err)
	}
}
