package standalonetest

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/standalone/apiserver"
)

// Start runs an API server over a new directory, with the roles, until the test ends. It never syncs to disk.
func Start(t testing.TB, roles ...runtime.Object) *apiserver.Server {
	t.Helper()
	return start(t, apiserver.Options{RBAC: roles})
}

// StartCollecting does the same for a test that runs a garbage collector.
func StartCollecting(t testing.TB, roles ...runtime.Object) *apiserver.Server {
	t.Helper()
	return start(t, apiserver.Options{RBAC: roles, Collects: true})
}

func start(t testing.TB, o apiserver.Options) *apiserver.Server {
	t.Helper()
	o.DataDir, o.Listen, o.NoSync = Dir(t), "127.0.0.1:0", true
	s, err := apiserver.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Client returns the client of a user, or of the administrator when the user is "".
func Client(t testing.TB, s *apiserver.Server, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	config := s.AdminConfig()
	if user != "" {
		config = s.ClientConfig(user, groups...)
	}
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Remote returns the administrator's way to the server from other processes.
func Remote(t testing.TB, s *apiserver.Server) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.AdminKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return config
}

const (
	// memoryFiles is where Linux keeps files in memory.
	memoryFiles = "/dev/shm"
	// memoryNeeded is how much must be free there: an etcd reserves 128 MB when it starts.
	memoryNeeded = 1 << 30
	// prefix begins the name of a directory.
	prefix = "api-"
)

// MakeDir makes a directory for a server that does not sync its data: in memory if there is room, otherwise where
// temporary files are. An etcd that omits fsync still waits for the disk when it begins a file of its log; beside tests
// that write much, that took as long as a request may take. The path is short, because that of a unix socket has at
// most 107 bytes. The caller removes the directory.
func MakeDir() (string, error) {
	if hasRoom(memoryFiles) {
		if dir, err := os.MkdirTemp(memoryFiles, prefix); err == nil {
			return dir, nil
		}
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return "", fmt.Errorf("make a directory for a test's data: %w", err)
	}
	return dir, nil
}

// Dir makes such a directory for a test, and removes it at the test's end.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := MakeDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func hasRoom(dir string) bool {
	var fs unix.Statfs_t
	err := unix.Statfs(dir, &fs)
	return err == nil && fs.Type == unix.TMPFS_MAGIC && fs.Bavail*uint64(fs.Bsize) >= memoryNeeded
}
