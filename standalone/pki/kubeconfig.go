package pki

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"volplane.dev/volplane/internal/decide/identity"
)

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
