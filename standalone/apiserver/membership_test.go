package apiserver_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/pki"
	"volplane.dev/volplane/standalone/standalonetest"
)

// applicant is a node that wants to join.
type applicant struct {
	t      *testing.T
	server *apiserver.Server
	name   string
	token  string
	key    *ecdsa.PrivateKey
}

func newApplicant(t *testing.T, s *apiserver.Server, name string) *applicant {
	a := &applicant{t: t, server: s, name: name, key: ecdsaKey(t, elliptic.P256())}
	a.invite(name)
	return a
}

func ecdsaKey(t *testing.T, c elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *applicant) invite(node string) {
	a.t.Helper()
	a.inviteAs(identity.Invite{Node: node, Seconds: 3600})
}

func (a *applicant) inviteAs(q identity.Invite) {
	a.t.Helper()
	status, said := post(a.t, standalonetest.Remote(a.t, a.server), identity.PathInvitation, encode(a.t, q))
	var invited identity.Invited
	if err := json.Unmarshal(said, &invited); status != http.StatusOK || err != nil {
		a.t.Fatalf("invite %s %s: %d %s", q.Kind, q.Node, status, said)
	}
	a.token = invited.Token
}

// invited is the way of who shows a token.
func (a *applicant) invited(token string) *rest.Config {
	c := rest.AnonymousClientConfig(standalonetest.Remote(a.t, a.server))
	c.BearerToken = token
	return c
}

// ask requests a certificate as a user, for a key.
func (a *applicant) ask(by *rest.Config, user string, key any) (int, []byte) {
	a.t.Helper()
	return a.askAt(identity.PathCertificate, by, user, key)
}

// askAt sends a request for a certificate to a path.
func (a *applicant) askAt(path string, by *rest.Config, user string, key any) (int, []byte) {
	a.t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: user}}, key)
	if err != nil {
		a.t.Fatal(err)
	}
	return post(a.t, by, path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// join returns the way of the node that has joined.
func (a *applicant) join() *rest.Config {
	a.t.Helper()
	status, cert := a.ask(a.invited(a.token), "system:node:"+a.name, a.key)
	if status != http.StatusOK {
		a.t.Fatalf("%s does not join: %d %s", a.name, status, cert)
	}
	return a.with(cert, a.key)
}

func (a *applicant) with(cert []byte, key *ecdsa.PrivateKey) *rest.Config {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	c := rest.AnonymousClientConfig(standalonetest.Remote(a.t, a.server))
	c.CertData, c.KeyData = cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return c
}

func encode(t *testing.T, what any) []byte {
	t.Helper()
	data, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func post(t *testing.T, by *rest.Config, path string, body []byte) (int, []byte) {
	t.Helper()
	client, err := rest.HTTPClientFor(by)
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, by.Host+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, said
}

func clientOf(t *testing.T, by *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(by)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestNodeJoins: a client with an invitation gets a certificate for the node that the invitation names and for one key,
// and nothing else; a client with a certificate gets the next.
func TestNodeJoins(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t, app.RBAC()...)
	a := newApplicant(t, s, "n1")
	p384, other := ecdsaKey(t, elliptic.P384()), ecdsaKey(t, elliptic.P256())
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	last := a.token[len(a.token)-1:]
	forged := strings.TrimSuffix(a.token, last) + map[bool]string{true: "1", false: "0"}[last == "0"]
	admin := standalonetest.Remote(t, s)
	want := func(what string, status int) func(int, []byte) {
		return func(got int, said []byte) {
			t.Helper()
			if got != status {
				t.Errorf("%s: %d %s, want %d", what, got, said, status)
			}
		}
	}
	want("another node's name", 403)(a.ask(a.invited(a.token), "system:node:n2", a.key))
	want("an administrator's name", 403)(a.ask(a.invited(a.token), "volplane-admin", a.key))
	want("another curve", 400)(a.ask(a.invited(a.token), "system:node:n1", p384))
	want("a key of another kind", 400)(a.ask(a.invited(a.token), "system:node:n1", weak))
	want("a forged token", 401)(a.ask(a.invited(forged), "system:node:n1", a.key))
	want("a token for another node",
		401)(a.ask(a.invited(strings.Replace(a.token, "~n1~", "~n2~", 1)), "system:node:n2", a.key))
	want("the administrator", 403)(a.ask(admin, "system:node:n1", a.key))
	want("no request", 400)(post(t, a.invited(a.token), identity.PathCertificate, []byte("x")))
	want("a huge request", 413)(post(t, a.invited(a.token), identity.PathCertificate, make([]byte, 1<<20)))
	want("an invitation by an invitation",
		403)(post(t, a.invited(a.token), identity.PathInvitation, encode(t, identity.Invite{Node: "n3", Seconds: 60})))
	want("a node with a bad name",
		400)(post(t, admin, identity.PathInvitation, encode(t, identity.Invite{Node: "../n", Seconds: 60})))
	want("an invitation for ever",
		400)(post(t, admin, identity.PathInvitation, encode(t, identity.Invite{Node: "n3", Seconds: 1 << 40})))

	node := a.join()
	if _, err := clientOf(t, node).CoreV1().Nodes().Create(t.Context(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("the node that joined: %v", err)
	}
	want("the same key again, because the answer was lost", 200)(a.ask(a.invited(a.token), "system:node:n1", a.key))
	want("the token again", 403)(a.ask(a.invited(a.token), "system:node:n1", other))
	if _, err := clientOf(t, a.invited(a.token)).CoreV1().Nodes().Get(t.Context(), "n1",
		metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a Node for an invitation: %v, want forbidden", err)
	}
	want("an invitation by a node",
		403)(post(t, node, identity.PathInvitation, encode(t, identity.Invite{Node: "n1", Seconds: 60})))
	want("another node's certificate", 403)(a.ask(node, "system:node:n2", other))
	status, cert := a.ask(node, "system:node:n1", other)
	want("renewal", 200)(status, cert)
	if _, err := clientOf(t, a.with(cert, other)).CoreV1().Nodes().Get(t.Context(), "n1",
		metav1.GetOptions{}); err != nil {
		t.Errorf("the renewed certificate: %v", err)
	}
}

// TestInvitationExpires: an invitation is stored without its secret, is valid until it expires, and is removed with the
// next one.
func TestInvitationExpires(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	secrets := standalonetest.Client(t, s, "").CoreV1().Secrets(volume.NamespaceSystem)
	a := newApplicant(t, s, "n1")
	token, ok := identity.ParseToken(a.token)
	all, err := secrets.List(t.Context(), metav1.ListOptions{})
	if err != nil || !ok || len(all.Items) != 1 {
		t.Fatalf("%d secrets, %v", len(all.Items), err)
	}
	kept := all.Items[0]
	if strings.Contains(string(kept.Data["invitation"]), token.Secret) {
		t.Error("the API keeps what an invitation is recognised by")
	}
	var i identity.Invitation
	if err := json.Unmarshal(kept.Data["invitation"], &i); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(i.Expires); left > time.Hour || left < time.Hour-time.Minute {
		t.Errorf("expires in %v, want an hour", left)
	}
	i.Expires = time.Now()
	kept.Data["invitation"] = encode(t, i)
	if _, err := secrets.Update(t.Context(), &kept, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if status, said := a.ask(a.invited(a.token), "system:node:n1", a.key); status != http.StatusUnauthorized {
		t.Errorf("an expired invitation: %d %s", status, said)
	}
	a.invite("n1")
	if _, err := secrets.Get(t.Context(), kept.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an expired invitation is kept: %v", err)
	}
	a.join()
}

// TestRevocation: nothing that a revoked node holds is accepted any more: immediately, for requests in flight, over
// open connections, and after a restart; other nodes continue, and the node can be invited again.
func TestRevocation(t *testing.T) {
	t.Parallel()
	o := apiserver.Options{DataDir: shortDir(t), Listen: "127.0.0.1:0", RBAC: app.RBAC(), NoSync: true}
	s := start(t, o)
	stop := func() { s.Stop() }
	defer func() { stop() }()
	o.Listen = s.Addr()
	a, b := newApplicant(t, s, "n1"), newApplicant(t, s, "n2")
	config, other := a.join(), b.join()
	node, old, neighbour := clientOf(t, config), agentNamed(t, o.DataDir, s, "n1"), clientOf(t, other)
	for name, c := range map[string]kubernetes.Interface{"n1": node, "n2": neighbour} {
		if _, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := old.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
		t.Errorf("a node that joined by an earlier version: %v", err)
	}
	ends, goesOn := watchNode(t, node, "n1"), watchNode(t, neighbour, "n2")
	a.invite("n1") // and is not used before it is taken back

	if status, said := post(t, standalonetest.Remote(t, s), identity.PathRevocation,
		encode(t, identity.Revoke{Node: "n1"})); status != http.StatusOK {
		t.Fatalf("revoke: %d %s", status, said)
	}
	refused := func(when string) {
		t.Helper()
		a.refused(when, config, node, old)
		if _, err := neighbour.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{}); err != nil {
			t.Errorf("%s: the other node: %v", when, err)
		}
	}
	refused("at once")
	select {
	case <-ends:
	case <-time.After(time.Minute):
		t.Error("a watch of the revoked node goes on")
	}
	select {
	case <-goesOn:
		t.Error("the watch of another node has ended")
	default:
	}
	if _, err := standalonetest.Client(t, s, "").CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
		t.Errorf("the Node of the revoked node: %v", err)
	}
	s.Stop()
	s = start(t, o)
	a.server = s
	refused("after a restart")
	a.invite("n1")
	if _, err := clientOf(t, a.join()).CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
		t.Errorf("invited again: %v", err)
	}
}

// refused looks that nothing counts: neither the node's clients, nor its
// certificate for a new one, nor its invitation.
func (a *applicant) refused(when string, config *rest.Config, clients ...kubernetes.Interface) {
	a.t.Helper()
	for k, c := range append(clients, clientOf(a.t, a.invited(a.token))) {
		if _, err := c.CoreV1().Nodes().Get(a.t.Context(), a.name, metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
			a.t.Errorf("%s: client %d: %v, want unauthorized", when, k, err)
		}
	}
	for what, c := range map[string]*rest.Config{"renewal": config, "an open invitation": a.invited(a.token)} {
		if status, said := a.ask(c, "system:node:"+a.name, a.key); status != http.StatusUnauthorized {
			a.t.Errorf("%s: %s: %d %s, want %d", when, what, status, said, http.StatusUnauthorized)
		}
	}
}

// watchNode returns what is closed when a watch ends.
func watchNode(t *testing.T, c kubernetes.Interface, name string) <-chan struct{} {
	t.Helper()
	w, err := c.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func(events <-chan watch.Event) {
		defer close(ended)
		for range events {
			continue
		}
	}(w.ResultChan())
	return ended
}

// agentNamed returns the client of a node that an earlier version has invited.
func agentNamed(t *testing.T, dir string, s *apiserver.Server, name string) kubernetes.Interface {
	t.Helper()
	ca, err := pki.Open(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Client("system:node:"+name, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	text, err := ca.Kubeconfig("https://"+s.Addr(), name, leaf)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	return clientOf(t, config)
}
