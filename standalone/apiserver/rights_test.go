package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/pki"
	"volplane.dev/volplane/standalone/standalonetest"
)

func TestRightsEndWhereTheRolesEnd(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t, app.RBAC()...)
	ctx := t.Context()
	node, nobody := standalonetest.Client(t, s, "system:node:a", "system:nodes"), standalonetest.Client(t, s, "nobody")
	granted := func(ctx context.Context) (bool, error) {
		_, err := node.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
		return err == nil, nil
	}
	if err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, granted); err != nil {
		t.Errorf("claims are not readable for a node: %v", err)
	}
	_, secrets := nobody.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
	_, nodeSecrets := node.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	_, attachments := node.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	for what, err := range map[string]error{
		"secrets for a user without a role": secrets, "all secrets for a node": nodeSecrets,
		"all attachments for a node": attachments,
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
}

// TestRolesOfEveryCluster: the roles admin, edit and view have the rights that they have in a cluster, and those of a
// role that is aggregated into them.
func TestRolesOfEveryCluster(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t, app.RBAC()...)
	ctx := t.Context()
	admin := standalonetest.Client(t, s, "root", "system:masters")
	snapshots := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{
			Name: "snapshots", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"},
		},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"snapshot.storage.k8s.io"}, Resources: []string{"volumesnapshots"}, Verbs: []string{"list"}},
		},
	}
	if _, err := admin.RbacV1().ClusterRoles().Create(ctx, snapshots, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for role, rights := range map[string]struct{ may, mayNot []string }{
		"view":  {[]string{"list persistentvolumeclaims", "list volumesnapshots"}, []string{"list secrets", "create pods"}},
		"edit":  {[]string{"create persistentvolumeclaims", "list secrets"}, []string{"create roles"}},
		"admin": {[]string{"create roles", "list volumesnapshots"}, []string{"list persistentvolumes", "list nodes"}},
	} {
		bind := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role, Namespace: "default"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: role}},
		}
		if _, err := admin.RbacV1().RoleBindings("default").Create(ctx, bind, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		user := standalonetest.Client(t, s, role)
		for _, right := range rights.may {
			granted := func(ctx context.Context) (bool, error) { return may(ctx, user, right), nil }
			if err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 30*time.Second, true, granted); err != nil {
				t.Errorf("%s may not %s", role, right)
			}
		}
		for _, right := range rights.mayNot {
			if may(ctx, user, right) {
				t.Errorf("%s may %s", role, right)
			}
		}
	}
}

// may says whether a user has a right in the namespace default, such as "list pods".
func may(ctx context.Context, user kubernetes.Interface, right string) bool {
	verb, kind, _ := strings.Cut(right, " ")
	groups := map[string]string{"roles": rbacv1.GroupName, "volumesnapshots": "snapshot.storage.k8s.io"}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: "default", Verb: verb, Group: groups[kind], Resource: kind,
		},
	}}
	got, err := user.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	return err == nil && got.Status.Allowed
}

// TestNobodyIsRefusedDuringAStart: a request of a node agent while the server starts is answered late, not refused for
// lack of rights.
func TestNobodyIsRefusedDuringAStart(t *testing.T) {
	t.Parallel()
	o := apiserver.Options{DataDir: shortDir(t), Listen: "127.0.0.1:0", RBAC: app.RBAC()}
	s := start(t, o)
	o.Listen = s.Addr()
	agent := agentOf(t, o.DataDir, "https://"+s.Addr())
	list := func(ctx context.Context) error {
		_, err := agent.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		return err
	}
	granted := func(ctx context.Context) (bool, error) { return list(ctx) == nil, nil }
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, granted); err != nil {
		t.Fatalf("volumes are not readable for a node: %v", err)
	}
	s.Stop()
	answered := make(chan error)
	go func() {
		for {
			if err := list(t.Context()); err == nil || apierrors.IsForbidden(err) {
				answered <- err
				return
			}
		}
	}()
	s = start(t, o)
	defer s.Stop()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// agentOf returns the client of a node agent in another process.
func agentOf(t *testing.T, dir, server string) kubernetes.Interface {
	t.Helper()
	ca, err := pki.Open(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	identity, err := ca.Client("system:node:a", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	text, err := ca.Kubeconfig(server, "a", identity)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestOnlyHealthIsPublic(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	for path, want := range map[string]int{
		"/healthz": http.StatusOK, "/livez": http.StatusOK, "/readyz": http.StatusOK,
		"/readyz/etcd": http.StatusUnauthorized, "/version": http.StatusUnauthorized, "/metrics": http.StatusUnauthorized,
		"/api": http.StatusUnauthorized, "/openapi/v2": http.StatusUnauthorized, "/debug/pprof/": http.StatusUnauthorized,
	} {
		if got := status(t, s, path, ""); got != want {
			t.Errorf("%s without an identity: %d, want %d", path, got, want)
		}
	}
	if got := status(t, s, "/readyz", "forged"); got != http.StatusUnauthorized {
		t.Errorf("/readyz with a wrong identity: %d, want %d", got, http.StatusUnauthorized)
	}
	// A token review authenticates in a request that has no path.
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: " "}}
	got, err := standalonetest.Client(t, s, "").AuthenticationV1().TokenReviews().Create(t.Context(), review,
		metav1.CreateOptions{})
	if err != nil || got.Status.Authenticated {
		t.Errorf("review of an empty token: %+v, %v; want no user", got.Status, err)
	}
}

// status requests a path with a bearer token, or without credentials.
func status(t *testing.T, s *apiserver.Server, path, token string) int {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(standalonetest.Remote(t, s).CAData)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

func TestCustomResourcesAreDescribed(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	config := s.AdminConfig()
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	c, err := extensionsclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.test.volplane.dev"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "test.volplane.dev", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"},
				},
			}},
		},
	}
	if _, err := c.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	missing := []string{"not asked yet"}
	err = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			data, err := c.Discovery().RESTClient().Get().AbsPath("/openapi/v3").DoRaw(ctx)
			if err != nil {
				return false, err
			}
			var described struct{ Paths map[string]any }
			if err := json.Unmarshal(data, &described); err != nil {
				return false, err
			}
			missing = nil
			for _, group := range []string{
				"api/v1", "apis/storage.k8s.io/v1", "apis/coordination.k8s.io/v1", "apis/events.k8s.io/v1",
				"apis/rbac.authorization.k8s.io/v1",
				"apis/authentication.k8s.io/v1", "apis/authorization.k8s.io/v1", "apis/apiextensions.k8s.io/v1",
				"apis/test.volplane.dev/v1",
			} {
				if described.Paths[group] == nil {
					missing = append(missing, group)
				}
			}
			return len(missing) == 0, nil
		})
	if err != nil {
		t.Errorf("not described: %v (%v)", missing, err)
	}
	data, err := c.Discovery().RESTClient().Get().AbsPath("/openapi/v2").DoRaw(t.Context())
	if err != nil || !bytes.Contains(data, []byte(`"/api/v1/persistentvolumes"`)) {
		t.Errorf("the description of v2 lacks volumes: %d bytes, %v", len(data), err)
	}
}
