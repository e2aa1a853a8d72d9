package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/standalone/pki"
)

func TestAuthorityLastsInPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first, second := open(t, dir), open(t, dir)
	if string(first.CertPEM()) != string(second.CertPEM()) || !first.ServiceAccountKey.Equal(second.ServiceAccountKey) {
		t.Error("a second opening made another authority")
	}
	err := filepath.Walk(dir, func(name string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %04o, want nothing for others", name, info.Mode().Perm())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestIdentitiesSayWhoAndForWhat(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "pki"))
	client, err := a.Client("system:node:n", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	server, err := a.Server("localhost", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if c := verify(t, a, client, x509.ExtKeyUsageClientAuth); c.Subject.CommonName != "system:node:n" ||
		!slices.Equal(c.Subject.Organization, []string{"system:nodes"}) {
		t.Errorf("subject %v", c.Subject)
	}
	c := verify(t, a, server, x509.ExtKeyUsageServerAuth)
	for _, host := range []string{"localhost", "127.0.0.1"} {
		if err := c.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if c.VerifyHostname("elsewhere") == nil {
		t.Error("the certificate speaks for a host it was not issued for")
	}
}

func TestKubeconfigIsComplete(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "pki"))
	identity, err := a.Client("u")
	if err != nil {
		t.Fatal(err)
	}
	data, err := a.Kubeconfig("https://127.0.0.1:1", "u", identity)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil || c.Host != "https://127.0.0.1:1" || string(c.CertData) != string(identity.Cert) ||
		string(c.CAData) != string(a.CertPEM()) {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestDamageIsNotReplaced(t *testing.T) {
	for _, name := range []string{"ca.key", "ca.crt", "service-account.key"} {
		dir := filepath.Join(t.TempDir(), "pki")
		open(t, dir)
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := pki.Open(dir); err == nil {
			t.Errorf("a damaged %s is not noticed", name)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != "damaged" {
			t.Errorf("%s was replaced: %v", name, err)
		}
	}
}

func verify(t *testing.T, a *pki.Authority, l pki.Leaf, usage x509.ExtKeyUsage) *x509.Certificate {
	t.Helper()
	c, err := verifyAt(t, a, l, usage, time.Now())
	if err != nil {
		t.Error(err)
	}
	return c
}

func verifyAt(
	t *testing.T, a *pki.Authority, l pki.Leaf, usage x509.ExtKeyUsage, at time.Time,
) (*x509.Certificate, error) {
	t.Helper()
	pair, err := tls.X509KeyPair(l.Cert, l.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.CertPEM())
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
	return pair.Leaf, err
}

func open(t *testing.T, dir string) *pki.Authority {
	t.Helper()
	a, err := pki.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestClockMayJump: the control plane works whatever the clock does, and an identity in a file expires in time.
func TestClockMayJump(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "pki"))
	server, err := a.Server("localhost")
	if err != nil {
		t.Fatal(err)
	}
	file, err := a.Client("u")
	if err != nil {
		t.Fatal(err)
	}
	year := 365 * 24 * time.Hour
	for _, c := range []struct {
		name  string
		leaf  pki.Leaf
		at    time.Time
		valid bool
	}{
		{"a server whose clock begins in 1970", server, time.Unix(3600, 0), true},
		{"a server whose clock is set right after decades", server, time.Now().Add(60 * year), true},
		{"a file on a host whose clock is behind", file, time.Now().Add(-year), true},
		{"a file after a year", file, time.Now().Add(pki.FileLife + time.Minute), false},
	} {
		_, err := verifyAt(t, a, c.leaf, x509.ExtKeyUsageAny, c.at)
		if (err == nil) != c.valid {
			t.Errorf("%s: valid %v, want %v: %v", c.name, err == nil, c.valid, err)
		}
	}
}

// TestKept: an identity in a kubeconfig is used again while it is whole, of this
// authority and the same user, and holds for long enough.
func TestKept(t *testing.T) {
	a, other := open(t, filepath.Join(t.TempDir(), "pki")), open(t, filepath.Join(t.TempDir(), "pki"))
	file := func(a *pki.Authority, name, user string, groups ...string) []byte {
		identity, err := a.Client(user, groups...)
		if err != nil {
			t.Fatal(err)
		}
		data, err := a.Kubeconfig("https://127.0.0.1:1", name, identity)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	now, good := time.Now(), file(a, "u", "u", "g")
	for name, c := range map[string]struct {
		file []byte
		now  time.Time
		kept bool
	}{
		"as it was made":        {good, now, true},
		"while a third is left": {good, now.Add(pki.FileLife*2/3 - time.Hour), true},
		"when a third is left":  {good, now.Add(pki.FileLife*2/3 + time.Hour), false},
		"over":                  {good, now.Add(2 * pki.FileLife), false},
		"a clock in 1970":       {good, time.Unix(3600, 0), true},
		"no file":               {nil, now, false},
		"damaged":               {good[:len(good)/2], now, false},
		"of another authority":  {file(other, "u", "u", "g"), now, false},
		"of another user":       {file(a, "u", "v", "g"), now, false},
		"of another group":      {file(a, "u", "u", "h"), now, false},
		"for another user":      {file(a, "v", "u", "g"), now, false},
		"with the key of another one": {
			[]byte(strings.ReplaceAll(string(good), keyLine(good), keyLine(file(a, "u", "u", "g")))), now, false,
		},
	} {
		leaf, kept := a.Kept(c.file, c.now, "u", "g")
		if kept != c.kept || kept && len(leaf.Key) == 0 {
			t.Errorf("%s: kept %v, want %v", name, kept, c.kept)
		}
	}
}

func keyLine(kubeconfig []byte) string {
	for line := range strings.Lines(string(kubeconfig)) {
		if strings.Contains(line, "client-key-data") {
			return line
		}
	}
	return "none"
}

// TestNodesSayTheirEpoch: a node's certificate is valid for days and has its epoch; one of an earlier version has none.
func TestNodesSayTheirEpoch(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "pki"))
	cert, err := a.Node("n1", 7, &a.ServiceAccountKey.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(cert)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if epoch, err := pki.EpochOf(c); err != nil || epoch != 7 || c.Subject.CommonName != "system:node:n1" ||
		!slices.Equal(c.Subject.Organization, []string{"system:nodes"}) {
		t.Errorf("%v in epoch %d, %v", c.Subject, epoch, err)
	}
	if left := time.Until(c.NotAfter); left > pki.NodeLife || left < pki.NodeLife-time.Minute {
		t.Errorf("valid for %v", left)
	}
	c.Subject.SerialNumber = ""
	if epoch, err := pki.EpochOf(c); err != nil || epoch != 0 {
		t.Errorf("an old certificate: %d, %v", epoch, err)
	}
	c.Subject.SerialNumber = "x"
	if _, err := pki.EpochOf(c); err == nil {
		t.Error("an epoch that is no number counts")
	}
}
