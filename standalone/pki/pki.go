package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/durable"
)

// The clock of a host may be wrong at its start, by decades if it has no battery, and may jump when it is synchronized.
// So the start of a certificate's validity never matters, and certificates that never leave the host are valid for a
// very long time.
const (
	authorityLife = 100 * 365 * 24 * time.Hour
	// FileLife is the validity of an identity that is stored in a file.
	FileLife = 365 * 24 * time.Hour
	// NodeLife is the validity of a node's certificate, which the node renews. A node
	// that was off for longer needs a new invitation.
	NodeLife = 7 * 24 * time.Hour
	// memoryLife is the validity of an identity that never leaves the process, which
	// must outlive any run of the control plane.
	memoryLife = authorityLife
)

// Authority issues identities. It is safe for concurrent use.
type Authority struct {
	cert    *x509.Certificate
	certPEM []byte
	key     *ecdsa.PrivateKey
	// ServiceAccountKey signs service account tokens.
	ServiceAccountKey *ecdsa.PrivateKey
}

// Leaf is a certificate and its key, PEM encoded.
type Leaf struct{ Cert, Key []byte }

// Open returns the authority in dir, and creates it if dir does not exist.
func Open(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of the certificate authority: %w", err)
	}
	a := &Authority{}
	var err error
	if a.key, err = openKey(filepath.Join(dir, caKey)); err != nil {
		return nil, err
	}
	if a.ServiceAccountKey, err = openKey(filepath.Join(dir, serviceAccountKey)); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, caCert)
	a.certPEM, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if a.certPEM, err = selfSigned(a.key); err == nil {
			err = durable.WriteFile(path, a.certPEM)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("certificate of the authority: %w", err)
	}
	block, _ := pem.Decode(a.certPEM)
	if block == nil {
		return nil, fmt.Errorf("certificate of the authority: %s contains no certificate; restore it from a backup", path)
	}
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return nil, fmt.Errorf("certificate of the authority: %s: %w", path, err)
	}
	return a, nil
}

// CertPEM returns the authority's certificate.
func (a *Authority) CertPEM() []byte { return a.certPEM }

// Client issues the identity of a user in groups, for a file.
func (a *Authority) Client(user string, groups ...string) (Leaf, error) {
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	return a.issue(t, FileLife)
}

// Node issues a certificate for a key that the node has created. The certificate is
// valid until the epoch of the node ends.
func (a *Authority) Node(name string, epoch identity.Epoch, key *ecdsa.PublicKey) ([]byte, error) {
	t := &x509.Certificate{
		Subject: pkix.Name{
			CommonName: identity.UserPrefix + name, Organization: []string{identity.NodesGroup},
			SerialNumber: strconv.FormatInt(int64(epoch), 10),
		},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
	}
	return sign(t, min(NodeLife, time.Until(a.cert.NotAfter)), a.cert, key, a.key)
}

// EpochOf returns the epoch in a node's certificate: the first one if the certificate has none.
func EpochOf(c *x509.Certificate) (identity.Epoch, error) {
	if c.Subject.SerialNumber == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(c.Subject.SerialNumber, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("certificate of %s: %w", c.Subject.CommonName, err)
	}
	return identity.Epoch(n), nil
}

// Server issues the API server's certificate for the hosts and for identity.ServerName, for use in this process only.
func (a *Authority) Server(hosts ...string) (Leaf, error) {
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{identity.ServerName},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return a.issue(t, memoryLife)
}

func (a *Authority) issue(t *x509.Certificate, life time.Duration) (Leaf, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Leaf{}, fmt.Errorf("make key of %s: %w", t.Subject.CommonName, err)
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	cert, err := sign(t, min(life, time.Until(a.cert.NotAfter)), a.cert, key.Public(), a.key)
	if err != nil {
		return Leaf{}, err
	}
	keyPEM, err := encodeKey(key)
	return Leaf{Cert: cert, Key: keyPEM}, err
}

func selfSigned(key *ecdsa.PrivateKey) ([]byte, error) {
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: "volplane-ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	return sign(t, authorityLife, t, key.Public(), key)
}

func sign(
	t *x509.Certificate, life time.Duration, parent *x509.Certificate, public crypto.PublicKey, key *ecdsa.PrivateKey,
) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t.SerialNumber, t.NotBefore, t.NotAfter = serial, time.Unix(0, 0), time.Now().Add(life)
	der, err := x509.CreateCertificate(rand.Reader, t, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", t.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func openKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s contains no key; restore it from a backup", path)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", path, err)
	}
	return key, nil
}

func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	data, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, durable.WriteFile(path, data)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// Kubeconfig returns a kubeconfig for a server (https://host:port), or any other with the name identity.ServerName, and
// the identity of a user. It contains a private key.
func (a *Authority) Kubeconfig(server, user string, shows Leaf) ([]byte, error) {
	return kubeconfig(server, a.certPEM, user,
		&clientcmdapi.AuthInfo{ClientCertificateData: shows.Cert, ClientKeyData: shows.Key})
}

// Invitation is Kubeconfig for the token of an invited user.
func Invitation(server string, authority []byte, user, token string) ([]byte, error) {
	return kubeconfig(server, authority, user, &clientcmdapi.AuthInfo{Token: token})
}

// kubeconfig returns a kubeconfig for a server and a user's credentials.
func kubeconfig(server string, authority []byte, user string, shows *clientcmdapi.AuthInfo) ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.Clusters["volplane"] = &clientcmdapi.Cluster{
		Server: server, CertificateAuthorityData: authority, TLSServerName: identity.ServerName,
	}
	c.AuthInfos[user] = shows
	c.Contexts["volplane"] = &clientcmdapi.Context{Cluster: "volplane", AuthInfo: user}
	c.CurrentContext = "volplane"
	return clientcmd.Write(*c)
}

// Kept returns the identity of a user in groups from a kubeconfig, if this authority issued it and more than a third of
// its life is left.
func (a *Authority) Kept(kubeconfig []byte, now time.Time, user string, groups ...string) (Leaf, bool) {
	c, err := clientcmd.Load(kubeconfig)
	if err != nil || c.AuthInfos[user] == nil {
		return Leaf{}, false
	}
	kept := Leaf{Cert: c.AuthInfos[user].ClientCertificateData, Key: c.AuthInfos[user].ClientKeyData}
	pair, err := tls.X509KeyPair(kept.Cert, kept.Key)
	if err != nil || pair.Leaf.Subject.CommonName != user || !slices.Equal(pair.Leaf.Subject.Organization, groups) {
		return Leaf{}, false
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: now.Add(FileLife / 3), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return kept, err == nil
}
