package kube

import (
	"bytes"
	"context"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
)

// theirProgram is built by the Makefile from Kubernetes' own module.
const theirProgram = "../../bin/kube-controller-manager"

// syncPeriod is how often Kubernetes' binder looks at everything anew. Much of
// what it does, it does only then.
const syncPeriod = 200 * time.Millisecond

// side is an API server with somebody's controllers.
type side struct {
	name   string
	server *apiserver.Server
	client kubernetes.Interface
}

func newSide(t *testing.T, name string) side {
	t.Helper()
	s := side{name: name, server: standalonetest.Start(t, app.RBAC()...)}
	config := s.server.AdminConfig()
	config.QPS = -1
	var err error
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return s
}

// ours runs controllers of volplane until the test ends.
func (s side) ours(t *testing.T, drivers *csi.Set, roles ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- app.ControlPlane(ctx, app.ControlPlaneOptions{
			ConfigFor: func(role string) (*rest.Config, error) { return s.server.ClientConfig(app.User(role)) },
			Roles:     roles, Drivers: drivers, Log: slog.New(slog.DiscardHandler),
		}, func() {})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// theirs runs controllers of Kubernetes until the test ends.
func (s side) theirs(t *testing.T, controllers ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(kubeconfig(s.server.AdminConfig()), file); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	program := exec.CommandContext(ctx, theirProgram, "--kubeconfig="+file, "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=5000", "--kube-api-burst=5000", "--pvclaimbinder-sync-period="+syncPeriod.String(), "--controllers="+strings.Join(controllers, ","))
	log := &lastWords{}
	program.Stdout, program.Stderr = log, log
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	t.Cleanup(func() {
		select {
		case err := <-ended:
			t.Errorf("kube-controller-manager ended: %v\n%s", err, log)
		default:
			cancel()
			<-ended
		}
	})
}

func kubeconfig(c *rest.Config) clientcmdapi.Config {
	k := clientcmdapi.NewConfig()
	k.Clusters["test"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	k.AuthInfos["test"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData}
	k.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	k.CurrentContext = "test"
	return *k
}

// lastWords keeps the end of what a program says.
type lastWords struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text.Len() > 1<<16 {
		l.text.Reset()
	}
	return l.text.Write(p)
}

func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
