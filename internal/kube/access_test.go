package kube

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

func TestParseRequest(t *testing.T) {
	for _, c := range []struct{ method, url, want string }{
		{"GET", "/api/v1/persistentvolumes", "list persistentvolumes"},
		{"GET", "/api/v1/persistentvolumes?watch=true", "watch persistentvolumes"},
		{"GET", "/api/v1/persistentvolumes/a", "get persistentvolumes"},
		{"PUT", "/api/v1/persistentvolumes/a/status", "update persistentvolumes/status"},
		{"GET", "/api/v1/namespaces/n/pods", "list pods"},
		{"POST", "/api/v1/namespaces/n/pods/p/binding", "create pods/binding"},
		{"DELETE", "/api/v1/namespaces/n/pods/p", "delete pods"},
		{"DELETE", "/api/v1/namespaces/n/pods", "deletecollection pods"},
		{"GET", "/api/v1/namespaces/n", "get namespaces"},
		{"PUT", "/api/v1/namespaces/n/finalize", "update namespaces/finalize"},
		{"PATCH", "/apis/storage.k8s.io/v1/volumeattachments/a/status", "patch storage.k8s.io volumeattachments/status"},
		{"GET", "/apis/storage.k8s.io/v1/namespaces/n/csistoragecapacities", "list storage.k8s.io csistoragecapacities"},
		{"GET", "/version", ""},
		{"GET", "/apis", ""},
		{"GET", "/apis/storage.k8s.io/v1", ""},
	} {
		req := httptest.NewRequest(c.method, c.url, nil)
		q, ok := parseRequest(req)
		got := strings.TrimSpace(q.verb + " " + strings.TrimSpace(q.group+" "+q.resource))
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%s %s: got %q, want %q", c.method, c.url, got, c.want)
		}
	}
}

func TestRestrictRefusesWhatIsNotDeclared(t *testing.T) {
	reached := 0
	next := roundTripper(func(*http.Request) (*http.Response, error) {
		reached++
		return &http.Response{StatusCode: 200}, nil
	})
	rights := append(Read("", "pods"), Write("", "pods/status", "patch"),
		Access{Resource: "configmaps", Namespace: "n", Verbs: []string{"create"}},
		Access{Resource: "configmaps", Namespace: "n", Names: []string{"a", "b"}, Verbs: []string{"get", "watch", "update"}})
	config := Restrict(&rest.Config{}, "binder", rights)
	rt := config.WrapTransport(next)
	for _, c := range []struct {
		method, url string
		ok          bool
	}{
		{"GET", "/api/v1/pods", true},
		{"PATCH", "/api/v1/namespaces/n/pods/p/status", true},
		{"PATCH", "/api/v1/namespaces/n/pods/p", false},
		{"GET", "/api/v1/secrets", false},
		{"GET", "/api", true},
		{"POST", "/api/v1/namespaces/n/configmaps", true},
		{"POST", "/api/v1/namespaces/m/configmaps", false},
		{"GET", "/api/v1/namespaces/n/configmaps/b", true},
		{"GET", "/api/v1/namespaces/m/configmaps/b", false},
		{"PUT", "/api/v1/namespaces/n/configmaps/c", false},
		{"GET", "/api/v1/namespaces/n/configmaps?watch=true&fieldSelector=metadata.name%3Da", true},
		{"GET", "/api/v1/namespaces/n/configmaps?watch=true&fieldSelector=metadata.name%3Dc", false},
		{"GET", "/api/v1/namespaces/n/configmaps?watch=true&fieldSelector=metadata.name%3Da%2Cmetadata.namespace%3Dn", false},
		{"GET", "/api/v1/namespaces/n/configmaps?watch=true", false},
	} {
		before := reached
		_, err := rt.RoundTrip(httptest.NewRequest(c.method, c.url, nil))
		if (err == nil) != c.ok || (reached > before) != c.ok {
			t.Errorf("%s %s: err %v, reached the server: %v", c.method, c.url, err, reached > before)
		}
		if err != nil && !strings.Contains(err.Error(), "binder may not") {
			t.Errorf("the error does not name the component: %v", err)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func FuzzParseRequest(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/n/pods/p/status")
	f.Add("DELETE", "/apis/a/b/c")
	f.Fuzz(func(t *testing.T, method, path string) {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Method, req.URL.Path = method, path
		q, ok := parseRequest(req)
		if ok && q.verb == "" {
			t.Errorf("%s %q: resource %q without a verb", method, path, q.resource)
		}
	})
}
