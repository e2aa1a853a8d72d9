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
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/doors/users"
	"volplane.dev/volplane/internal/doors/users/userstest"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/testkit/golden"
)

// TestStories plays the calls of engines, as docker and podman make them, and failures around them.
func TestStories(t *testing.T) {
	golden.Steps(t, "testdata/stories.txt", func(t *testing.T, play func(func(string) string)) {
		synctest.Test(t, func(t *testing.T) {
			block := userstest.Claim("block")
			block.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
			w := newEngine(t, block, userstest.Claim("theirs"))
			defer func() { w.stop() }()
			play(w.play)
		})
	})
}

// TestWaiting: calls that wait for a driver, even the maximum number of them, do not delay a call that needs no driver.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		going := userstest.Claim("going")
		going.DeletionTimestamp, going.Finalizers = ptr.To(metav1.Now()), []string{"example.com/slow"}
		w := newEngine(t, userstest.Claim("theirs"), going)
		defer w.stop()
		var waiting sync.WaitGroup
		for range callLimit {
			waiting.Go(func() { w.call("Create", `{"Name":"going"}`) })
		}
		synctest.Wait()
		began := time.Now()
		for _, name := range []string{"Plugin.Activate", "Capabilities", "List", "Get", "Path", "Unmount"} {
			got := w.call(name, `{"Name":"theirs","ID":"x"}`)
			if took := time.Since(began); !strings.HasPrefix(got, "200 ") || took > 0 {
				t.Errorf("%s, after %s: %s", name, took, got)
			}
		}
		if got := w.call("Remove", `{"Name":"going"}`); !strings.Contains(got, "other calls are being answered") {
			t.Errorf("one that waits more: %s", got)
		}
		waiting.Wait()
	})
}

// TestNames: a claim has its volume's name if it can, else a name that no other volume's claim has.
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

// TestNameOf: the annotation with a volume's name counts only at the claim that docker makes for such a volume.
func TestNameOf(t *testing.T) {
	for _, c := range []struct{ claim, annotation, want string }{
		{"data", "", "data"},
		{"data", "data", "data"},
		{"project-data-2bbd0ed4", "project_data", "project_data"},
		{"data", "other", "data"},
		{"data", "project_data", "data"},
		{claimName("../x"), "../x", claimName("../x")},
	} {
		claim := userstest.Claim(c.claim)
		if c.annotation != "" {
			claim.Annotations = map[string]string{annName: c.annotation}
		}
		if got := nameOf(claim); got != c.want {
			t.Errorf("claim %s with %q is volume %s, want %s", c.claim, c.annotation, got, c.want)
		}
	}
}

// TestSocket: calls wait for a door that is being opened, and a door that has ended leaves the socket, at
// which engines try again.
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
		d := newDoor(options.DoorOptions{
			Namespace: ns, Node: node, Grace: options.DockerGrace, Log: slog.New(slog.DiscardHandler),
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
