package external

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

const (
	// mostServers limits the number of addresses; etcd advises against more than seven members.
	mostServers = 32
	// mostPrefix limits the length of a prefix, which each key repeats.
	mostPrefix = 200
)

// Options describe where the store is; zero means that there is none. The flags are those of kube-apiserver.
type Options struct {
	// Servers are the URLs of the members, and Prefix begins all keys.
	Servers []string `json:"servers"`
	Prefix  string   `json:"prefix"`
	// CAFile has the authorities of the servers' certificates; CertFile and KeyFile are this client's.
	CAFile   string `json:"caFile,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

// IsZero says whether no store is named.
func (o Options) IsZero() bool {
	return len(o.Servers) == 0 && o.Prefix == "" && o.CAFile == "" && o.CertFile == "" && o.KeyFile == ""
}

// Validate returns an error for options that are incomplete or cannot be meant. It reads no files.
func (o Options) Validate() error {
	switch {
	case len(o.Servers) == 0:
		return errors.New("--etcd-cafile, --etcd-certfile, --etcd-keyfile and --etcd-prefix belong to --etcd-servers, " +
			"which is missing")
	case len(o.Servers) > mostServers:
		return fmt.Errorf("--etcd-servers names %d addresses, at most %d are possible", len(o.Servers), mostServers)
	case (o.CertFile == "") != (o.KeyFile == ""):
		return errors.New("--etcd-certfile and --etcd-keyfile belong together: one of them is missing")
	}
	if err := o.validatePrefix(); err != nil {
		return err
	}
	for _, file := range []string{o.CAFile, o.CertFile, o.KeyFile} {
		if file != "" && !path.IsAbs(file) {
			return fmt.Errorf("%.200q of --etcd-cafile, --etcd-certfile or --etcd-keyfile is not an absolute path", file)
		}
	}
	for _, server := range o.Servers {
		if err := o.validateServer(server); err != nil {
			return fmt.Errorf("--etcd-servers: %.200q %w", server, err)
		}
	}
	return nil
}

// validatePrefix requires an explicit prefix: several control planes would share a default.
func (o Options) validatePrefix() error {
	switch {
	case o.Prefix == "":
		return errors.New("--etcd-servers needs --etcd-prefix, such as /volplane/SITE, below which no other program has keys")
	case len(o.Prefix) > mostPrefix || !regexp.MustCompile(`^(/[A-Za-z0-9][A-Za-z0-9._-]*)+$`).MatchString(o.Prefix):
		return fmt.Errorf("--etcd-prefix %.*q is not a path such as /volplane/SITE, of letters, digits, '.', '_' and '-', "+
			"with at most %d bytes", mostPrefix, o.Prefix, mostPrefix)
	case o.Prefix == "/registry" || strings.HasPrefix(o.Prefix, "/registry/"):
		return errors.New("--etcd-prefix /registry is that of Kubernetes: choose another one, such as /volplane/SITE")
	}
	return nil
}

// validateServer returns an error unless the text is the URL of a server.
func (o Options) validateServer(server string) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return errors.New("is not a URL such as https://10.0.0.1:2379")
	}
	if server != u.Scheme+"://"+u.Host {
		return errors.New("has more than a host and a port, such as https://10.0.0.1:2379")
	}
	if u.Port() == "" {
		return errors.New("has no port, which is 2379 as a rule")
	}
	return o.validateTransport(u)
}

// validateTransport requires that all servers are reached in the same way, because a client supports only one. A
// connection that others could read or change is refused for a store that has every Secret.
func (o Options) validateTransport(u *url.URL) error {
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case (u.Scheme == "https") != strings.HasPrefix(o.Servers[0], "https://"):
		return errors.New("is not reached as the first one is: use https for all of them")
	case u.Scheme == "https" && o.CAFile == "":
		return errors.New("needs --etcd-cafile, the certificate of the authority that has signed the server's")
	case u.Scheme == "http" && !local:
		return errors.New("would be reached without encryption, which only this host may be: use https")
	case u.Scheme == "http" && (o.CAFile != "" || o.CertFile != ""):
		return errors.New("is reached without TLS, and has no use for --etcd-cafile and --etcd-certfile")
	}
	return nil
}

// tls returns the configuration of connections, or nil without encryption. It refuses files that cannot work. Renewed
// files are used from the next connection on.
func (o Options) tls(now time.Time) (*tls.Config, error) {
	if o.CAFile == "" {
		return nil, nil //nolint:nilnil // the client relies on nil for connections without encryption
	}
	if o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-certfile and --etcd-keyfile: %w", err)
		}
		if pair.Leaf != nil && now.After(pair.Leaf.NotAfter) {
			return nil, fmt.Errorf("--etcd-certfile: %s has expired on %s: renew it", o.CertFile,
				pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
	}
	pem, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("--etcd-cafile: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--etcd-cafile: %s has no certificate", o.CAFile)
	}
	c, err := transport.TLSInfo{CertFile: o.CertFile, KeyFile: o.KeyFile, TrustedCAFile: o.CAFile}.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("--etcd-cafile, --etcd-certfile and --etcd-keyfile: %w", err)
	}
	return c, nil
}
