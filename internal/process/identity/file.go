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

// maxSize is the size limit, in bytes, of a file with an identity and of the server's answer.
const maxSize = 64 << 10

const ending = ".pem"

// file has the identity that was obtained with an invitation: the key and, once there is one, the
// certificate.
type file struct{ path string }

// fileOf returns the file for an invitation, which has the invitation's name: each invitation leads
// to its own identity.
func fileOf(dir, invitation string) file { return file{filepath.Join(dir, invitation+ending)} }

// read returns the key, and the certificate if there is one. obtained is the modification time of
// the file.
func (f file) read() (key *ecdsa.PrivateKey, cert *x509.Certificate, obtained time.Time, err error) {
	data, err := durable.ReadFile(f.path, maxSize)
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

// begin returns the key for an invitation. A new key is written to the file first: after a lost
// answer, the certificate is requested for the same key.
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

// write writes a key and its certificate.
func (f file) write(key *ecdsa.PrivateKey, cert []byte) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	return durable.WriteFile(f.path, append(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), cert...))
}

// removeOthers removes the files of earlier invitations.
func (f file) removeOthers() error {
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
