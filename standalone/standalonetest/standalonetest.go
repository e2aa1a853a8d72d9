package standalonetest

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/standalone/apiserver"
)

// Start runs an API server over a new directory, with the roles, until the
// test ends. It never syncs to disk.
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

// Client returns the client of a user, or of the administrator when the user
// is "".
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
