package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// TestMounts: the space is reported only for what is mounted on this host's node, and a path cannot send commands to a
// terminal.
func TestMounts(t *testing.T) {
	for name, c := range map[string]struct {
		nodes []string
		told  bool
	}{
		"the only node, of a server on this host": {[]string{"n1"}, true},
		"one of two nodes":                        {[]string{"n1", "n2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
			for _, n := range c.nodes {
				nodes.Items = append(nodes.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}})
			}
			pods := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
			for _, dir := range []string{"/", "/a\x1b[2J\tb"} {
				pod := doors.PodAtPath("default", "data", dir, "n1", mount.BindOptions{})
				pod.Status.Conditions = []corev1.PodCondition{{
					Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
				}}
				pods.Items = append(pods.Items, *pod)
			}
			out := runWith(t, map[string]any{"/api/v1/nodes": nodes, "/api/v1/namespaces/default/pods": pods}, "mounts")
			if strings.Contains(out, "\x1b") || !strings.Contains(out, "/a [2J b") {
				t.Errorf("%q", out)
			}
			if told := strings.Contains(out, "iB"); told != c.told {
				t.Errorf("the space is told: %v\n%s", told, out)
			}
		})
	}
}

// TestMountsNotYet: a mount that is only requested has no space of its own, whatever is mounted at its path, and JSON
// says so.
func TestMountsNotYet(t *testing.T) {
	nodes := corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}}
	pods := corev1.PodList{Items: []corev1.Pod{*doors.PodAtPath("default", "data", "/", "n1", mount.BindOptions{})}}
	lists := map[string]any{"/api/v1/nodes": nodes, "/api/v1/namespaces/default/pods": pods}
	if out := runWith(t, lists, "mounts"); strings.Contains(out, "iB") || !strings.Contains(out, "<not mounted>") {
		t.Error(out)
	}
	if out := runWith(t, lists, "mounts", "-o", "json"); strings.Contains(out, `"used"`) ||
		!strings.Contains(out, `"mounted": false`) {
		t.Error(out)
	}
}

// runWith runs a verb at a server on this host that has lists, and returns what is printed.
func runWith(t *testing.T, lists map[string]any, args ...string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(lists[r.URL.Path]); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "config")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],` +
		`"clusters":[{"name":"c","cluster":{"server":"` + server.URL + `"}}]}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	streams := Streams{In: strings.NewReader(""), Out: &out, Err: &out}
	if code := Main(t.Context(), append(args, "--kubeconfig", config), streams, "v0.0.0-test", Programs{}); code != 0 {
		t.Errorf("it ends with %d", code)
	}
	return out.String()
}

// TestThisNode: a host is the node whose agent has used its data directory, whatever the host is called now.
func TestThisNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &shell.Shell{Flags: shell.Flags{DataDir: dir}}
	if got := s.ThisNode(); got != options.HostName() {
		t.Errorf("before an agent has started: %q", got)
	}
	if err := os.MkdirAll(filepath.Join(dir, "node"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "node", "node-name"), []byte("first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.ThisNode(); got != "first" {
		t.Errorf("this node is %q, want first", got)
	}
	nodes := clientset.New(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: options.HostName()}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "first"}})
	if got, err := s.NodeOf(t.Context(), nodes, ""); got != "first" || err != nil {
		t.Errorf("commands work on node %q, want first: %v", got, err)
	}
	var driver options.DriverOptions
	streams := Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}
	Main(t.Context(), []string{"driver", "local", "--data-dir", dir}, streams, "v0.0.0-test", Programs{
		LocalDriver: func(_ context.Context, o options.DriverOptions) error {
			driver = o
			return nil
		},
	})
	if driver.NodeID != "first" {
		t.Errorf("the bundled driver calls its node %q, want first", driver.NodeID)
	}
	var out bytes.Buffer
	streams.Err = &out
	code := Main(t.Context(), []string{"node", "rename", "first", "second"}, streams, "", Programs{})
	if code != shell.ExitError || !strings.Contains(out.String(), "--name first") {
		t.Errorf("a node is renamed: %s", &out)
	}
}
