package volume

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/process/options"
)

// TestInterruptedCreate: a command that is interrupted while the server creates the claim knows about the claim.
func TestInterruptedCreate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
			return
		}
		var claim map[string]any
		if err := json.NewDecoder(r.Body).Decode(&claim); err != nil {
			t.Error(err)
		}
		cancel()
		<-gone
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(claim)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { close(gone) })
	var out bytes.Buffer
	b := begun{Shell: shell.New(ctx, shell.Streams{Out: &out, Err: &out}, "", shell.Programs{}), client: client}
	err = b.claimFor(ctx, "default", "data", mountOptions{create: true, claimRequest: claimRequest{size: "1Gi"}})
	if err != nil || b.claim == nil || b.claim.Name != "data" {
		t.Errorf("%v, %v", b.claim, err)
	}
}

// TestDirectories: all directories that were created are removed, except those that are in use or that existed before.
func TestDirectories(t *testing.T) {
	for name, c := range map[string]struct{ there, used, stays, says string }{
		"none was there":         {"", "", "", ""},
		"the first was there":    {"a", "", "a", ""},
		"all were there":         {"a/b/c", "", "a/b/c", ""},
		"somebody uses one":      {"", "a/other", "a/other", "/a stays"},
		"somebody uses the last": {"a", "a/b/c/other", "a/b/c/other", "/a/b/c stays"},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			b := begun{Shell: testShell(t), node: options.HostName(), dir: filepath.Join(top, "a/b/c")}
			if err := os.MkdirAll(filepath.Join(top, c.there), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := b.directory(""); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(b.dir); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(top, c.used), 0o700); err != nil {
				t.Fatal(err)
			}
			says := strings.Join(b.stays(t.Context()), "; ")
			if (says == "") != (c.says == "") || !strings.Contains(says, c.says) {
				t.Errorf("%q, want %q", says, c.says)
			}
			left := ""
			_ = filepath.WalkDir(top, func(path string, _ os.DirEntry, err error) error {
				left = path
				return err
			})
			if want := filepath.Join(top, c.stays); left != want {
				t.Errorf("%s stays, want %s", left, want)
			}
		})
	}
}

// TestNoDirectory: where a file is, no directory is made, and what was made before is known.
func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b := begun{Shell: testShell(t), node: options.HostName(), dir: filepath.Join(file, "a/b")}
	if err := b.directory(""); err == nil || len(b.madeDirs) > 0 {
		t.Errorf("%v, %v", b.madeDirs, err)
	}
}
