//go:build linux

package cli_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/cli"
)

// TestDataDirIsObeyed: a verb with a data directory connects to no other control plane, regardless of $KUBECONFIG, and
// names the directory if it has no control plane.
func TestDataDirIsObeyed(t *testing.T) {
	dir := t.TempDir()
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another control plane was asked: %s %s", r.Method, r.URL)
	}))
	t.Cleanup(other.Close)
	for name, text := range map[string]string{
		"config": fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c",`+
			`"context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":%q}}]}`, other.URL),
		"claim.yaml": "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBECONFIG", filepath.Join(dir, "config"))
	t.Chdir(dir)
	for _, verb := range []string{
		"apply -f claim.yaml", "create data --size 1Gi", "delete pvc data", "describe pvc/data", "events pvc/data", "get pvc",
		"mount data DIR", "mounts", "resize data 2Gi", "snapshot data", "snapshot-state FILE", "status", "umount DIR", "why",
		"why pvc/data", "docker-plugin --node n", "flex migrate plan", "flex migrate run --all", "flex migrate status",
		"flex rollback example.com/files", "driver restart d.example.com", "driver logs d.example.com",
		"driver trace d.example.com", "driver list", "driver remove d.example.com", "orphans",
		"adopt d.example.com volume --claim default/data", "driver add d.example.com --socket /csi.sock",
	} {
		t.Run(verb, func(t *testing.T) {
			var out bytes.Buffer
			none := filepath.Join(dir, "none")
			cli.Main(t.Context(), append(strings.Fields(verb), "--data-dir", none),
				cli.Streams{In: strings.NewReader(""), Out: &out, Err: &out}, "v0.0.0-test", cli.Programs{})
			if !strings.Contains(out.String(), none) {
				t.Errorf("the directory is not named: %s", &out)
			}
		})
	}
}
