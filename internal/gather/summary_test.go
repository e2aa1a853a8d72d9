package gather

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/volume"
)

// TestWhoSummarizes: what a control plane says is believed, and nothing else is read. If it does not tell the user,
// does not know yet, or is another API server, all objects of the namespace are read.
func TestWhoSummarizes(t *testing.T) {
	told, err := json.Marshal(survey.Summary{Now: time.Unix(1, 0), Pods: 7})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		status int
		body   string
		// pods is the number of Pods in the answer; read says whether the objects were read.
		pods int
		read bool
	}{
		"the control plane tells": {http.StatusOK, string(told), 7, false},
		"it is still starting":    {http.StatusServiceUnavailable, "later", 0, true},
		"the user may not ask":    {http.StatusForbidden, "{}", 0, true},
		"there is no such path":   {http.StatusNotFound, "404 page not found", 0, true},
		"it is another's path":    {http.StatusOK, "{}", 0, true},
		"it is no JSON":           {http.StatusOK, "ok", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			read := false
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path == survey.Path:
					if ns := r.URL.Query().Get("namespace"); ns != "web" {
						t.Errorf("asked about namespace %q", ns)
					}
					w.WriteHeader(c.status)
					_, _ = w.Write([]byte(c.body))
				case strings.Contains(r.URL.Path, "snapshot"):
					w.WriteHeader(http.StatusNotFound)
				default:
					read = read || r.URL.Path == "/api/v1/namespaces/web/pods"
					_, _ = w.Write([]byte("{}"))
				}
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			got, err := New(client, Options{}).Summary(t.Context(), "web")
			if err != nil || got.Pods != c.pods || read != c.read || got.Now.IsZero() {
				t.Errorf("%+v, read: %v, %v", got, read, err)
			}
		})
	}
}

// TestNameWithASlash: a name that a user has chosen leads to no other object than one of that kind.
func TestNameWithASlash(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s is read", r.URL.Path)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../../../../api/v1/secrets", "a/b", "..", "%2e%2e"} {
		_, err := readFrom[snapshotv1.VolumeSnapshotContent](t.Context(), client, SnapshotsVersion,
			volume.ResourceSnapshotContents, name)
		if !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v, want that it is not found", name, err)
		}
	}
}
