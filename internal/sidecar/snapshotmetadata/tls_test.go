package snapshotmetadata

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/testkit/logged"
)

// files writes a certificate and its key, each if requested, with a modification time.
func files(t *testing.T, o sidecar.SnapshotMetadataOptions, name string, cert, key bool, at time.Time) {
	t.Helper()
	pair, _ := newCertificate(t, name)
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		o.Cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, o.Key: {Type: "PRIVATE KEY", Bytes: der},
	} {
		if path == o.Cert && !cert || path == o.Key && !key {
			continue
		}
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificateIsReplaced: a handshake has the certificate that is in the files by then. If they do not fit,
// because the key of a new one is not there yet for example, the certificate before it is used.
func TestCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	o := sidecar.SnapshotMetadataOptions{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	var log logged.Text
	if _, err := TLS(o, slog.New(slog.NewTextHandler(&log, nil))); err == nil {
		t.Error("a server without a certificate starts")
	}
	files(t, o, "first", true, true, now)
	c, err := TLS(o, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	shows := func(want string) {
		t.Helper()
		pair, err := c.GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		if leaf, err := x509.ParseCertificate(pair.Certificate[0]); err != nil || !slices.Contains(leaf.DNSNames, want) {
			t.Errorf("the certificate is of %q, want %s: %v", leaf.DNSNames, want, err)
		}
	}
	shows("first")
	files(t, o, "half", true, false, now.Add(time.Second))
	shows("first")
	files(t, o, "second", true, true, now.Add(2*time.Second))
	shows("second")
	if err := os.Remove(o.Key); err != nil {
		t.Fatal(err)
	}
	shows("second")
	text := log.String()
	if !strings.Contains(text, "the one before it stays in use") || strings.Contains(text, "PRIVATE") {
		t.Error(text)
	}
}

// TestTLSFlags: the flags restrict TLS by Go's names, and a name that is unknown or unsafe ends the program.
func TestTLSFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		min, suites, curves string
		want                string
	}{
		{"", "", "", "least 303, 0 suites, 0 curves"},
		{"VersionTLS13", " TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 ,", "X25519,CurveP256", "least 304, 1 suites, 2 curves"},
		{"VersionTLS11", "", "", `--tls-min-version "VersionTLS11" is neither VersionTLS12 nor VersionTLS13`},
		{"", "TLS_RSA_WITH_RC4_128_SHA", "", `--tls-cipher-suites: "TLS_RSA_WITH_RC4_128_SHA" is unknown to Go, or not safe`},
		{"", "", "P1", `--tls-curve-preferences: "P1" is unknown to Go, or not safe`},
	} {
		o := sidecar.SnapshotMetadataOptions{
			Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"),
			MinVersion: c.min, CipherSuites: c.suites, CurvePreferences: c.curves,
		}
		files(t, o, "x", true, true, time.Now())
		var says string
		if got, err := TLS(o, slog.New(slog.DiscardHandler)); err != nil {
			says = err.Error()
		} else {
			says = fmt.Sprintf("least %x, %d suites, %d curves", got.MinVersion, len(got.CipherSuites),
				len(got.CurvePreferences))
		}
		if says != c.want {
			t.Errorf("%+v: %s", c, says)
		}
	}
}
