package up

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/process/identity"
)

func TestServerURL(t *testing.T) {
	for in, want := range map[string]string{
		"":                 "https://127.0.0.1:6771",
		"storage.lan":      "https://storage.lan:6771",
		"storage.lan:443":  "https://storage.lan:443",
		"10.0.0.7":         "https://10.0.0.7:6771",
		"fd00::7":          "https://[fd00::7]:6771",
		"[fd00::7]:443":    "https://[fd00::7]:443",
		"storage.lan:port": "", "storage.lan:0": "", "under_score": "", "a b": "", "https://x": "", "x:70000": "",
	} {
		got, err := serverURL("https://127.0.0.1:6771", in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

// is compares a received notification.
func is(t *testing.T, heard, want string) {
	t.Helper()
	if heard != want {
		t.Errorf("heard %q, want %q", heard, want)
	}
}

// TestUp runs a control plane as systemd does: systemd is notified when everything is ready, that the process is alive,
// and when it stops, and by no other program. A node of another host reaches the server under the name in its
// invitation.
func TestUp(t *testing.T) {
	dir, err := os.MkdirTemp("", "up-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "notify")
	supervisor, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer supervisor.Close()
	if err := supervisor.SetReadDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "60000000")
	heard := func() string {
		b := make([]byte, 1024)
		for {
			n, err := supervisor.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			// On a slow host it requests more time first.
			if word := string(b[:n]); !strings.HasPrefix(word, "EXTEND_TIMEOUT_USEC=") {
				return word
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	var screen strings.Builder
	data := filepath.Join(dir, "data")
	go func() {
		ended <- Run(ctx, Options{
			DataDir: data, Listen: "0.0.0.0:0", Names: []string{"storage.lan"}, Node: "n1", Out: &screen,
			Log: slog.New(slog.DiscardHandler),
		})
	}()
	is(t, heard(), "READY=1")
	is(t, heard(), "WATCHDOG=1")
	if _, told := os.LookupEnv("NOTIFY_SOCKET"); told {
		t.Error("programs that are started from here would speak for us")
	}
	if err := joins(t.Context(), data, "n2", "storage.lan"); err != nil {
		t.Error(err)
	}
	collects(t, data)
	cancel()
	word := heard()
	for word == "WATCHDOG=1" {
		word = heard()
	}
	is(t, word, "STOPPING=1")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// Whether they share blocks depends on the disk of the test.
	if !regexp.MustCompile(`(?s) is up .*snapshots   [^\n]+, as (are|do) clones`).MatchString(screen.String()) {
		t.Errorf("the screen says %q", &screen)
	}
}

// joins joins with an invitation to a server of that name, creates the node's Node, as its agent would, and is revoked.
func joins(ctx context.Context, data, node, server string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	invitation, err := Invite(ctx, data, node, server, time.Minute)
	if err != nil {
		return err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(invitation)
	if err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(config.Host, "https://"))
	if host != server {
		return fmt.Errorf("the invitation leads to %s", config.Host)
	}
	// The name does not exist here: only the connection is redirected.
	config.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	}
	joined, err := identity.Join(ctx, config, filepath.Join(data, node), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(joined.Config)
	if err != nil {
		return err
	}
	if _, err = client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := revokes(ctx, client, data, node); err != nil {
		return err
	}
	if _, err := Invite(ctx, data, "../n", server, time.Minute); err == nil || !strings.Contains(err.Error(), "RFC 1123") {
		return fmt.Errorf("a node of a bad name: %w", err)
	}
	return nil
}

// revokes revokes a node, whose client is refused from then on; a mistyped name matches no node.
func revokes(ctx context.Context, client kubernetes.Interface, data, node string) error {
	for name, want := range map[string]bool{node: true, node + "-typo": false} {
		if r, err := Revoke(ctx, data, name); err != nil || r.Known != want || r.ControlPlane || r.Used {
			return fmt.Errorf("revoke %s: %+v: %w", name, r, err)
		}
	}
	if _, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		return fmt.Errorf("a revoked node: %w", err)
	}
	return nil
}

// TestSlowStart: systemd is asked for more time as long as the start makes progress, and no longer.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var words []string
		go extend(ctx, func(word string) { words = append(words, word) })
		<-time.After(time.Minute + time.Second)
		cancel()
		<-time.After(time.Minute)
		if want := "EXTEND_TIMEOUT_USEC=60000000"; len(words) != 3 || words[0] != want {
			t.Errorf("%q; want three times %s", words, want)
		}
	})
}

// collects checks that dependents of an object are deleted with it.
func collects(t *testing.T, data string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(data, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, maps, foreground := t.Context(), client.CoreV1().ConfigMaps("default"), metav1.DeletePropagationForeground
	owner, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID},
		}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "owner", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	deadline, tick := time.After(time.Minute), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for _, name := range []string{"owned", "owner"} {
		for {
			if _, err := maps.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
				break
			}
			select {
			case <-deadline:
				t.Fatalf("%s stays", name)
			case <-tick.C:
			}
		}
	}
}

// TestForgetNeedsOwnKey: a key that is elsewhere may come back, and then there
// would be nothing left to read.
func TestForgetNeedsOwnKey(t *testing.T) {
	o := Options{DataDir: "/d", Node: "n", ForgetUnreadable: true}
	if err := o.Validate(); err != nil {
		t.Errorf("volplane's own key: %v", err)
	}
	o.EncryptionConfig = "/f"
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--forget-unreadable-secrets") {
		t.Errorf("a key that is elsewhere: %v", err)
	}
	o = Options{DataDir: "/d", Node: "Bad Name"}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), `--name "Bad Name" is not a name of a node`) {
		t.Errorf("a name that no Node can have: %v", err)
	}
}
