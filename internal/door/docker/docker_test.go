package docker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/door/users"
	"volplane.dev/volplane/internal/door/users/userstest"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/testkit/golden"
)

// TestStories plays what engines do, as it was seen of docker and podman, and what goes wrong beside it.
func TestStories(t *testing.T) {
	text, err := os.ReadFile("testdata/stories.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for story := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		lines := strings.Split(story, "\n")
		out.WriteString(lines[0] + "\n")
		t.Run(strings.TrimPrefix(lines[0], "# "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				block := userstest.Claim("block")
				block.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
				w := newWorld(t, block, userstest.Claim("theirs"))
				defer w.stop()
				for _, line := range lines[1:] {
					if step, is := strings.CutPrefix(line, "> "); is {
						fmt.Fprintf(&out, "> %s\n  %s\n", step, w.play(step))
					}
				}
			})
		})
		out.WriteString("\n")
	}
	golden.Equal(t, "testdata/stories.txt", strings.TrimSpace(out.String())+"\n")
}

// TestNames: a claim has its volume's name if it can, else one of its own; and nobody else's.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for name, want := range map[string]string{
		"data": "data", "a.b-c": "a.b-c", strings.Repeat("a", 64): strings.Repeat("a", 64),
		"project_data": "project-data-2bbd0ed4", "Data": "data-cec3a9b8", "a..b": "a-b-f62b4241", "a-": "a-9baf4407",
		strings.Repeat("A", 300): strings.Repeat("a", 244) + "-4daeb9ac",
	} {
		got := claimName(name)
		if got != want || len(validation.IsDNS1123Subdomain(got)) > 0 {
			t.Errorf("%.40s: %s, want %s", name, got, want)
		}
		if other, taken := seen[got]; taken {
			t.Errorf("%s and %s have the claim %s", name, other, got)
		}
		seen[got] = name
	}
	for _, bad := range []string{"", "-a", "_a", "a/b", "a b", "../a", "ä", strings.Repeat("a", 1025)} {
		if checkName(bad) == nil {
			t.Errorf("%.20q is allowed", bad)
		}
	}
}

// TestSocket: calls wait for a door that is being opened, and a door that has gone leaves the socket, at which
// engines try again.
func TestSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "volplane.sock")
	for range 2 {
		l, err := Listen(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		status := make(chan string, 1)
		go func() { status <- post(path, "/Plugin.Activate", "") }()
		ctx, cancel := context.WithCancel(t.Context())
		d := newDoor(program.DockerOptions{
			Namespace: ns, Node: node, Grace: program.DockerGrace, Log: slog.New(slog.DiscardHandler),
		}, kubetest.NewAPI(t), users.Kernel{}, nil)
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx, l) }()
		if got := <-status; got != "200 application/vnd.docker.plugins.v1.2+json" {
			t.Error(got)
		}
		if got := post(path, "/VolumeDriver.Get", strings.Repeat(" ", bodyLimit+1)); !strings.HasPrefix(got, "500 ") {
			t.Errorf("a request without end: %s", got)
		}
		if got := post(path, "/VolumeDriver.Forget", ""); !strings.HasPrefix(got, "404 ") {
			t.Errorf("an unknown call: %s", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

func post(path, call, body string) string {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
	r, err := client.Post("http://plugin"+call, "", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	return fmt.Sprint(r.StatusCode, " ", r.Header.Get("Content-Type"))
}
