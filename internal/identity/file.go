package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"volplane.dev/volplane/internal/durable"
)

// largest bounds a file with an identity, and an answer of the server.
const largest = 64 << 10

const ending = ".pem"

// file has the identity that an invitation led to: the key, and as soon as there
// is one the certificate.
type file struct{ path string }

// fileOf returns the file of an invitation. Its name is that of the invitation:
// a new one leads to a new identity.
func fileOf(dir, invitation string) file { return file{filepath.Join(dir, invitation+ending)} }

// read returns the key, and the certificate if there is one. When it was obtained
// is roughly known: it is when the file was written.
func (f file) read() (key *ecdsa.PrivateKey, cert *x509.Certificate, obtained time.Time, err error) {
	data, err := durable.ReadFile(f.path, largest)
	if err != nil {
		return nil, nil, time.Time{}, err
	}
	block, rest := pem.Decode(data)
	if block == nil {
		return nil, nil, time.Time{}, fmt.Errorf("%s holds no key", f.path)
	}
	if key, err = x509.ParseECPrivateKey(block.Bytes); err != nil {
		return nil, nil, time.Time{}, fmt.Errorf("%s: %w", f.path, err)
	}
	if block, _ = pem.Decode(rest); block == nil {
		return key, nil, time.Time{}, nil
	}
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, nil, time.Time{}, fmt.Errorf("%s: %w", f.path, err)
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, nil, time.Time{}, err
	}
	return key, pair.Leaf, info.ModTime(), nil
}

// begin returns the key of an invitation, made and written down first: when an
// answer is lost, it is asked for again for the same key.
func (f file) begin() (*ecdsa.PrivateKey, *x509.Certificate, time.Time, error) {
	key, cert, obtained, err := f.read()
	if !errors.Is(err, fs.ErrNotExist) {
		return key, cert, obtained, err
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return nil, nil, time.Time{}, fmt.Errorf("make directory of the identity: %w", err)
	}
	if key, err = newKey(); err != nil {
		return nil, nil, time.Time{}, err
	}
	return key, nil, time.Time{}, f.write(key, nil)
}

// write keeps a key and its certificate.
func (f file) write(key *ecdsa.PrivateKey, cert []byte) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	return durable.WriteFile(f.path, append(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), cert...))
}

// alone removes what earlier invitations have left.
func (f file) alone() error {
	all, err := filepath.Glob(filepath.Join(filepath.Dir(f.path), "*"+ending))
	for _, other := range all {
		if other != f.path {
			err = errors.Join(err, durable.Remove(other))
		}
	}
	return err
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}
