package pki

import (
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig returns the file with which the user of the identity reaches the
// server (https://host:port). It holds a private key.
func (a *Authority) Kubeconfig(server, user string, identity Leaf) ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.Clusters["volplane"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: a.certPEM}
	c.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: identity.Cert, ClientKeyData: identity.Key}
	c.Contexts["volplane"] = &clientcmdapi.Context{Cluster: "volplane", AuthInfo: user}
	c.CurrentContext = "volplane"
	return clientcmd.Write(*c)
}
