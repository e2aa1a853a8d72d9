package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/durable"
)

// The files of an authority.
const (
	caCert            = "ca.crt"
	caKey             = "ca.key"
	serviceAccountKey = "service-account.key"
)

// Keys returns the files of the authority.
func (a *Authority) Keys() (k identity.Keys, err error) {
	if k.CAKey, err = encodeKey(a.key); err != nil {
		return k, err
	}
	k.CACert = a.certPEM
	k.ServiceAccountKey, err = encodeKey(a.ServiceAccountKey)
	return k, err
}

// WriteKeys writes the files of an authority to a directory, where Open finds them. It refuses those that do not belong
// to the authority with a hash.
func WriteKeys(dir string, k identity.Keys, authority string) error {
	got, err := HashOf(k.CACert)
	if err != nil {
		return err
	}
	if got != authority {
		return fmt.Errorf("the certificate authority has the hash %.12s, want %.12s", got, authority)
	}
	block, _ := pem.Decode(k.CACert)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("certificate of the authority: %w", err)
	}
	key, err := parseKey(k.CAKey)
	if err != nil {
		return fmt.Errorf("key of the authority: %w", err)
	}
	if public, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
		return errors.New("the key of the authority does not belong to its certificate")
	}
	if _, err := parseKey(k.ServiceAccountKey); err != nil {
		return fmt.Errorf("key of service account tokens: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of the certificate authority: %w", err)
	}
	for name, data := range map[string][]byte{caCert: k.CACert, caKey: k.CAKey, serviceAccountKey: k.ServiceAccountKey} {
		if err := durable.WriteFile(filepath.Join(dir, name), data); err != nil {
			return err
		}
	}
	return nil
}

// HashOf returns the hash of an authority's certificate, by which users recognise it.
func HashOf(cert []byte) (string, error) {
	block, rest := pem.Decode(cert)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return "", errors.New("there is not one certificate of an authority in PEM")
	}
	block.Headers = nil
	return identity.Hash(pem.EncodeToMemory(block)), nil
}

// HashIn returns the hash of the authority in a directory, "" if the directory does not exist or is empty.
func HashIn(dir string) (string, error) {
	const largest = 64 << 10
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find the certificate authority: %w", err)
	}
	cert, err := durable.ReadFile(filepath.Join(dir, caCert), largest)
	if err != nil {
		return "", fmt.Errorf("certificate of the authority: %w; restore it from a backup", err)
	}
	hash, err := HashOf(cert)
	if err != nil {
		return "", fmt.Errorf("certificate of the authority: %s: %w; restore it from a backup", filepath.Join(dir, caCert),
			err)
	}
	return hash, nil
}

// Seal returns a proof that a control plane with this authority has written a text for a purpose.
func (a *Authority) Seal(purpose, text string) (string, error) {
	secret, err := a.key.Bytes()
	if err != nil {
		return "", fmt.Errorf("key of the authority: %w", err)
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "volplane "+purpose, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("derive key: %w", err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil)), nil
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM key was found")
	}
	return x509.ParseECPrivateKey(block.Bytes)
}
