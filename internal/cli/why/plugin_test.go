package why

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"volplane.dev/volplane/internal/cli/shell"
)

// TestWhyVolumeFlags wants the flags of kubectl that choose a server, a user and a namespace to be in each request.
func TestWhyVolumeFlags(t *testing.T) {
	var mutex sync.Mutex
	var paths []string
	headers := http.Header{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		paths, headers = append(paths, r.URL.Path), r.Header.Clone()
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer server.Close()
	t.Setenv("KUBECONFIG", "/nonexistent")
	var out, failed bytes.Buffer
	code := Plugin(t.Context(), []string{
		"pvc/data", "-s", server.URL, "--insecure-skip-tls-verify", "-n", "web", "--token", "secret", "--as", "jane",
		"--as-group", "staff", "--as-uid", "7", "--as-user-extra", "Scope=read", "--request-timeout", "9s",
	}, shell.Streams{In: &bytes.Buffer{}, Out: &out, Err: &failed}, "v1")
	if code != shell.ExitError || failed.Len() == 0 {
		t.Errorf("exit code %d, errors %q", code, failed.String())
	}
	if !slices.ContainsFunc(paths, func(p string) bool { return strings.Contains(p, "/namespaces/web/") }) {
		t.Errorf("the requests were %v", paths)
	}
	for name, want := range map[string]string{
		"Authorization": "Bearer secret", "Impersonate-User": "jane", "Impersonate-Group": "staff", "Impersonate-Uid": "7",
		"Impersonate-Extra-Scope": "read",
	} {
		if got := headers.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if agent := headers.Get("User-Agent"); agent != "volplane/v1" {
		t.Errorf("the user agent is %q", agent)
	}
}
