package external

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// refused asks the servers for their version, which shows what a client of etcd hides: a certificate that one side
// rejects, for which waiting is useless. It returns nil if there is another reason.
func (o Options) refused(ctx context.Context) error {
	config, err := o.tls(time.Now())
	if err != nil || config == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	for _, server := range o.Servers {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/version", nil)
		if err != nil {
			return fmt.Errorf("ask %s: %w", server, err)
		}
		answer, err := client.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			continue
		}
		var theirs *tls.CertificateVerificationError
		var ours *net.OpError
		var plain tls.RecordHeaderError
		switch {
		case errors.As(err, &theirs):
			return fmt.Errorf("%s: %w: %s", server, theirs, next(theirs))
		case errors.As(err, &ours) && ours.Op == "remote error":
			return fmt.Errorf("%s does not accept the certificate of this client: %w; use --etcd-certfile and "+
				"--etcd-keyfile with one that its authority has signed", server, ours)
		case errors.As(err, &plain):
			return fmt.Errorf("%s does not speak TLS: %w", server, plain)
		}
	}
	return nil
}

// next returns the remedy for the certificate of a server.
func next(err error) string {
	var expired x509.CertificateInvalidError
	var named x509.HostnameError
	switch {
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return "renew the certificate of the store, or set the clock of this host"
	case errors.As(err, &named):
		return "use an address of --etcd-servers that its certificate has"
	}
	return "--etcd-cafile must be the authority that has signed the certificate of the store"
}
