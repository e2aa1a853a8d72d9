package apiserver_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
)

// childDir makes TestChild in a second process run a server with a directory.
const childDir = "VOLPLANE_TEST_CHILD_DIR"

// TestChild is the process that TestKillLosesNothing kills; alone it does
// nothing.
func TestChild(t *testing.T) {
	t.Parallel()
	dir := os.Getenv(childDir)
	if dir == "" {
		return
	}
	s := start(t, apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0"})
	if err := keep(t, standalonetest.Client(t, s, ""), fmt.Sprint("by-", os.Getpid())); err != nil {
		t.Fatal(err)
	}
	fmt.Println("confirmed", os.Getpid())
	// The end of the parent ends the child too.
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestKillLosesNothing(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	var names []string
	for range 2 {
		names = append(names, "by-"+killedAfterWrite(t, dir))
	}
	s := start(t, apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0"})
	defer s.Stop()
	for _, name := range names {
		if _, err := standalonetest.Client(t, s, "").CoreV1().ConfigMaps("default").Get(t.Context(), name,
			metav1.GetOptions{}); err != nil {
			t.Errorf("what a killed process confirmed: %v", err)
		}
	}
}

// killedAfterWrite runs a server in its own process, kills it as soon as it
// has confirmed a write, and returns its process id.
func killedAfterWrite(t *testing.T, dir string) string {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
	child.Env = append(os.Environ(), childDir+"="+dir)
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if pid, ok := strings.CutPrefix(lines.Text(), "confirmed "); ok {
			_ = child.Process.Kill()
			_ = child.Wait()
			return pid
		}
	}
	_ = child.Wait()
	t.Fatalf("the child ended before its write: %s", strings.Join(said, "\n"))
	return ""
}

func TestServersDoNotKnowEachOther(t *testing.T) {
	t.Parallel()
	a, b := standalonetest.Start(t), standalonetest.Start(t)
	if err := keep(t, standalonetest.Client(t, a, ""), "only-in-a"); err != nil {
		t.Fatal(err)
	}
	if _, err := standalonetest.Client(t, b, "").CoreV1().ConfigMaps("default").Get(t.Context(), "only-in-a",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the other server's object: %v, want not found", err)
	}
	mixed, foreign := standalonetest.Remote(t, b), standalonetest.Remote(t, a)
	mixed.CertData, mixed.KeyData = foreign.CertData, foreign.KeyData
	c, err := kubernetes.NewForConfig(mixed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the other server's administrator: %v, want unauthorized", err)
	}
}

// TestStopEndsEverything: a process that starts one server after another does
// not grow.
func TestStopEndsEverything(t *testing.T) {
	t.Parallel()
	const several = 3
	cycle := func() {
		s := start(t, apiserver.Options{DataDir: shortDir(t), Listen: "127.0.0.1:0", NoSync: true})
		s.Stop()
	}
	cycle()
	before := settled(t, 0, time.Second)
	for range several {
		cycle()
	}
	// One forgotten storage alone is some 30 goroutines a server.
	if after := settled(t, before+several, time.Minute); after > before+several {
		stacks := &bytes.Buffer{}
		_ = pprof.Lookup("goroutine").WriteTo(stacks, 1)
		t.Errorf("%d goroutines after one server, %d after %d more:\n%s", before, after, several, stacks)
	}
}

// settled waits until at most limit goroutines are left, or until their number
// has not fallen for some time.
func settled(t *testing.T, limit int, calm time.Duration) int {
	t.Helper()
	least, since := runtime.NumGoroutine(), time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for least > limit && time.Since(since) < calm {
		<-tick.C
		if n := runtime.NumGoroutine(); n < least {
			least, since = n, time.Now()
		}
	}
	return least
}

// TestListenEverywhere: a server that listens at all addresses of the host is
// reached, and trusted, at each of them.
func TestListenEverywhere(t *testing.T) {
	t.Parallel()
	s := start(t, apiserver.Options{DataDir: shortDir(t), Listen: "0.0.0.0:0", NoSync: true})
	defer s.Stop()
	_, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.To4() == nil {
			continue
		}
		config := standalonetest.Remote(t, s)
		config.Host = "https://" + net.JoinHostPort(n.IP.String(), port)
		c, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("at %s: %v", config.Host, err)
		}
	}
}

func keep(t *testing.T, c kubernetes.Interface, name string) error {
	t.Helper()
	_, err := c.CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}
