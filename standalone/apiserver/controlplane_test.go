package apiserver_test

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/pki"
	"volplane.dev/volplane/standalone/standalonetest"
)

const plane = identity.KindControlPlane

// newPlaneApplicant is a host that is invited as a control plane.
func newPlaneApplicant(t *testing.T, s *apiserver.Server, name string) *applicant {
	a := &applicant{t: t, server: s, name: name, key: ecdsaKey(t, elliptic.P256())}
	a.inviteAs(identity.Invite{Kind: plane, Node: name, Seconds: 600})
	return a
}

// fetch requests the keys with a token, for a key.
func (a *applicant) fetch(token string, key any) (int, []byte) {
	a.t.Helper()
	return a.askAt(identity.PathControlPlane, a.invited(token), plane.Requested()+a.name, key)
}

// wantAnswer returns what compares an answer.
func wantAnswer(t *testing.T) func(what string, status int, words string) func(int, []byte) {
	return func(what string, status int, words string) func(int, []byte) {
		return func(got int, said []byte) {
			t.Helper()
			if got != status || !strings.Contains(string(said), words) {
				t.Errorf("%s: %d %.200q, want %d %q", what, got, said, status, words)
			}
			if status != http.StatusOK && bytes.Contains(said, []byte("PRIVATE KEY")) {
				t.Errorf("%s: keys are in a refusal", what)
			}
		}
	}
}

// TestControlPlaneFetchesKeys: an invitation of a control plane leads to the keys, for one key of a host and nothing
// else, and no other invitation or identity does.
func TestControlPlaneFetchesKeys(t *testing.T) {
	m := standalonetest.StartMembers(t, 1)
	dir := shortDir(t)
	s := start(t, outside(t, dir, m.Options))
	defer s.Stop()
	want := wantAnswer(t)
	a, n := newPlaneApplicant(t, s, "two"), newApplicant(t, s, "n1")
	node := n.join()
	n.invite("n1")
	other := ecdsaKey(t, elliptic.P256())
	relabelled := strings.Replace(a.token, "volplane-control-plane~", "volplane~", 1)
	forged := strings.Replace(n.token, "volplane~", "volplane-control-plane~", 1)
	asPlane := func(c *rest.Config, user string) (int, []byte) {
		return a.askAt(identity.PathControlPlane, c, user, a.key)
	}

	want("a certificate", 403, "")(a.ask(a.invited(a.token), "system:node:two", a.key))
	want("a certificate by the token of a node", 401, "")(a.ask(a.invited(relabelled), "system:node:two", a.key))
	want("keys by an invitation of a node", 403, "")(asPlane(a.invited(n.token), plane.Requested()+"n1"))
	want("keys by its token in another form", 401, "")(asPlane(a.invited(forged), plane.Requested()+"n1"))
	want("keys for a node", 403, "")(asPlane(node, plane.Requested()+"n1"))
	want("keys for the administrator", 403, "no invitation")(asPlane(standalonetest.Remote(t, s), plane.Requested()+"two"))
	want("another name", 403, "for control plane two")(asPlane(a.invited(a.token), plane.Requested()+"three"))
	want("a node's request", 403, "for control plane two")(asPlane(a.invited(a.token), "system:node:two"))
	want("no request", 400, "")(post(t, a.invited(a.token), identity.PathControlPlane, []byte("x")))
	want("another curve", 400, "")(a.fetch(a.token, ecdsaKey(t, elliptic.P384())))
	want("an invitation", 403, "")(post(t, a.invited(a.token), identity.PathInvitation,
		encode(t, identity.Invite{Kind: plane, Node: "three", Seconds: 60})))
	if _, err := clientOf(t, a.invited(a.token)).CoreV1().Secrets(volume.NamespaceSystem).List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("Secrets for an invitation: %v", err)
	}

	for range 2 { // the first answer may be lost
		status, said := a.fetch(a.token, a.key)
		hasKeys(t, dir, status, said)
	}
	want("another key", 403, "has already been used")(a.fetch(a.token, other))
	want("revoke", 200, "")(post(t, standalonetest.Remote(t, s), identity.PathRevocation,
		encode(t, identity.Revoke{Node: "two"})))
	want("after it was revoked", 401, "")(a.fetch(a.token, a.key))
}

// hasKeys requires that an answer has the keys of a data directory.
func hasKeys(t *testing.T, dir string, status int, said []byte) {
	t.Helper()
	var k identity.Keys
	if err := json.Unmarshal(said, &k); status != http.StatusOK || err != nil {
		t.Fatalf("keys: %d, %v", status, err)
	}
	for name, got := range map[string][]byte{
		"ca.crt": k.CACert, "ca.key": k.CAKey, "service-account.key": k.ServiceAccountKey, "encryption.yaml": k.Encryption,
	} {
		if kept, err := os.ReadFile(filepath.Join(dir, "pki", name)); err != nil || !bytes.Equal(kept, got) {
			t.Errorf("%s differs: %v", name, err)
		}
	}
	if k.Prefix != "/volplane/here" || k.ProviderConfig != "" {
		t.Errorf("prefix %s, file %q", k.Prefix, k.ProviderConfig)
	}
}

// TestWhoInvitesControlPlanes: only a user with all rights can, for an unused name, and for a limited time.
func TestWhoInvitesControlPlanes(t *testing.T) {
	m := standalonetest.StartMembers(t, 1)
	s := start(t, outside(t, shortDir(t), m.Options))
	defer s.Stop()
	admin, want := standalonetest.Client(t, s, ""), wantAnswer(t)
	invite := func(by *rest.Config, q identity.Invite) (int, []byte) {
		return post(t, by, identity.PathInvitation, encode(t, q))
	}
	root := standalonetest.Remote(t, s)
	doorman := rest.CopyConfig(root)
	doorman.Impersonate.UserName = "doorman"
	allow(t, admin, "doorman",
		rbacv1.PolicyRule{Verbs: []string{"post"}, NonResourceURLs: []string{identity.PathInvitation}})
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			status, _ := invite(doorman, identity.Invite{Node: "n1", Seconds: 60})
			return status == http.StatusOK, nil
		}); err != nil {
		t.Fatalf("who may invite nodes: %v", err)
	}
	want("who may invite nodes", 403, "system:masters")(invite(doorman,
		identity.Invite{Kind: plane, Node: "two", Seconds: 60}))
	want("for two hours", 400, "at most 1h")(invite(root, identity.Invite{Kind: plane, Node: "two", Seconds: 7200}))
	want("of another kind", 400, "kind")(invite(root, identity.Invite{Kind: "root", Node: "two", Seconds: 60}))
	want("a bad name", 400, "")(invite(root, identity.Invite{Kind: plane, Node: "../two", Seconds: 60}))
	must(admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		metav1.CreateOptions{}))(t)
	want("the name of a node", 409, "delete node n1 --lost")(invite(root,
		identity.Invite{Kind: plane, Node: "n1", Seconds: 60}))

	a := &applicant{t: t, server: s, name: "two", key: ecdsaKey(t, elliptic.P256())}
	a.inviteAs(identity.Invite{Kind: plane, Node: "two", Seconds: 1})
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			status, _ := a.fetch(a.token, a.key)
			return status == http.StatusUnauthorized, nil
		}); err != nil {
		t.Errorf("an invitation does not expire: %v", err)
	}
	token, _ := identity.ParseToken(a.token)
	a.inviteAs(identity.Invite{Kind: plane, Node: "two", Seconds: 60})
	if _, err := admin.CoreV1().Secrets(volume.NamespaceSystem).Get(t.Context(), "volplane-invitation-"+token.ID,
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an expired invitation is kept: %v", err)
	}
}

// allow grants a right.
func allow(t *testing.T, admin kubernetes.Interface, name string, rule rbacv1.PolicyRule) {
	t.Helper()
	must(admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule},
	}, metav1.CreateOptions{}))(t)
	must(admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}, metav1.CreateOptions{}))(t)
}

// TestForgedInvitation: a user who may write Secrets, but does not have the key of the authority, can neither create
// nor change an invitation of a control plane.
func TestForgedInvitation(t *testing.T) {
	m := standalonetest.StartMembers(t, 1)
	dir := shortDir(t)
	s := start(t, outside(t, dir, m.Options))
	defer s.Stop()
	secrets, want := standalonetest.Client(t, s, "").CoreV1().Secrets(volume.NamespaceSystem), wantAnswer(t)
	a := newPlaneApplicant(t, s, "two")
	status, said := a.fetch(a.token, a.key)
	hasKeys(t, dir, status, said)
	token, _ := identity.ParseToken(a.token)
	name := "volplane-invitation-" + token.ID
	for what, change := range map[string]func(*identity.Invitation){
		"never used":   func(i *identity.Invitation) { i.Key = "" },
		"valid longer": func(i *identity.Invitation) { i.Expires = i.Expires.Add(time.Hour) },
		"no seal":      func(i *identity.Invitation) { i.Seal = "" },
		"another host": func(i *identity.Invitation) { i.Node = "three" },
	} {
		kept := must(secrets.Get(t.Context(), name, metav1.GetOptions{}))(t)
		right := kept.Data["invitation"]
		var i identity.Invitation
		if err := json.Unmarshal(right, &i); err != nil {
			t.Fatal(err)
		}
		change(&i)
		kept.Data["invitation"] = encode(t, i)
		kept = must(secrets.Update(t.Context(), kept, metav1.UpdateOptions{}))(t)
		want(what, 401, "")(a.fetch(a.token, a.key))
		kept.Data["invitation"] = right
		must(secrets.Update(t.Context(), kept, metav1.UpdateOptions{}))(t)
	}
	want("as it was", 200, "")(a.fetch(a.token, a.key))
}

// TestControlPlaneOverOwnStore: a control plane whose objects are in its own etcd invites no other one, and hands out
// no keys if its objects were moved back after an invitation.
func TestControlPlaneOverOwnStore(t *testing.T) {
	t.Parallel()
	s, want := standalonetest.Start(t), wantAnswer(t)
	want("an invitation", 409, "volplane migrate-store")(post(t, standalonetest.Remote(t, s), identity.PathInvitation,
		encode(t, identity.Invite{Kind: plane, Node: "two", Seconds: 60})))
	ca, err := pki.Open(filepath.Join(filepath.Dir(s.AdminKubeconfig()), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	token := identity.Token{Kind: plane, Node: "two", ID: strings.Repeat("a", 16), Secret: strings.Repeat("0", 64)}
	i := identity.Invitation{
		Kind: plane, Node: "two", Hash: identity.Hash([]byte(token.Secret)), Expires: time.Now().Add(time.Hour).UTC(),
	}
	if i.Seal, err = ca.Seal("invitation", i.Sealed(token.ID)); err != nil {
		t.Fatal(err)
	}
	must(standalonetest.Client(t, s, "").CoreV1().Secrets(volume.NamespaceSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "volplane-invitation-" + token.ID},
		Type:       "volplane.dev/invitation", Data: map[string][]byte{"invitation": encode(t, i)},
	}, metav1.CreateOptions{}))(t)
	a := &applicant{t: t, server: s, name: "two", key: ecdsaKey(t, elliptic.P256())}
	want("keys", 403, "volplane migrate-store")(a.fetch(token.String(), a.key))
}
