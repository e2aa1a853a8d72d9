package integration

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// fields compares each object that a controller writes with the object before the write, and fails the test
// when a field is changed that is not declared.
type fields struct {
	t      testing.TB
	client rest.Interface
}

func fieldsOf(t testing.TB, client kubernetes.Interface) fields {
	return fields{t, client.CoreV1().RESTClient()}
}

// of wraps the transport of one role.
func (f fields) of(role string) func(http.RoundTripper) http.RoundTripper {
	var rights []kube.Access
	for _, d := range app.Declarations() {
		if d.Name == role {
			rights = d.Rights()
		}
	}
	return func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(r *http.Request) (*http.Response, error) {
			verb := map[string]string{http.MethodPut: "update", http.MethodPatch: "patch"}[r.Method]
			if verb == "" || strings.Contains(r.URL.Path, "/events/") {
				return next.RoundTrip(r)
			}
			object := targetOf(r.URL.Path)
			before, err := f.client.Get().AbsPath(object.path).Do(r.Context()).Raw()
			if err != nil {
				return next.RoundTrip(r) // the write will not find it either
			}
			sent := bodyOf(r)
			answer, err := next.RoundTrip(r)
			if err != nil || answer.StatusCode != http.StatusOK {
				return answer, err
			}
			after, err := io.ReadAll(answer.Body)
			answer.Body = io.NopCloser(bytes.NewReader(after))
			for _, path := range kubetest.Undeclared(rights, verb, object.group, object.resource, decoded(before),
				decoded(after)) {
				if verb == "update" || kubetest.Meant(types.PatchType(r.Header.Get("Content-Type")), sent, path) {
					f.t.Errorf("%s: %s %s changes %s, which is not declared", role, verb, r.URL.Path, path)
				}
			}
			return answer, err
		})
	}
}

// decoded returns an object of the API, or the JSON text of a kind that is not known.
func decoded(text []byte) any {
	if o, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil); err == nil {
		return o
	}
	return json.RawMessage(text)
}

// target is the object that a path names.
type target struct{ path, group, resource string }

func targetOf(path string) target {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	o, rest := target{}, 2 // api/v1
	if parts[0] == "apis" {
		o.group, rest = parts[1], 3
	}
	if parts[rest] == "namespaces" && len(parts) > rest+2 {
		rest += 2
	}
	o.path, o.resource = "/"+strings.Join(parts[:rest+2], "/"), parts[rest]
	if len(parts) > rest+2 {
		o.resource += "/" + parts[rest+2]
	}
	return o
}

func bodyOf(r *http.Request) []byte {
	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return nil
	}
	return text
}
