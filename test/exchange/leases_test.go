package exchange

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// gate is the way of one program to the API server. It counts requests.
type gate struct {
	kubeconfig string

	mu sync.Mutex
	// watches counts the open watches by resource, and writes those of leases that succeeded.
	watches map[string]int
	writes  int
}

// newGate opens a way to the API server until the test ends.
func newGate(t *testing.T, s differential.Side) *gate {
	t.Helper()
	admin := s.Server.AdminConfig()
	transport, err := rest.TransportFor(admin)
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(admin.Host)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), watches: map[string]int{}}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport, proxy.FlushInterval = transport, -1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer g.count(r)()
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: server.URL}},
		Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}}, CurrentContext: "c",
	}, g.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *gate) count(r *http.Request) (over func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	if strings.Contains(r.URL.Path, "/leases/") && r.Method == http.MethodPut {
		g.writes++
	}
	if !strings.Contains(r.URL.RawQuery, "watch=") {
		return func() {}
	}
	g.watches[resource]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.watches[resource]--
	}
}

// open returns the open watches.
func (g *gate) open() (n int, by string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, one := range g.watches {
		n += one
	}
	return n, fmt.Sprint(slices.Sorted(maps.Keys(g.watches)), g.watches)
}

func (g *gate) leaseWrites() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.writes
}

// TestLeasesOfAllRoles: a process with all controllers of a driver writes its leases at most twelve times a minute.
// After it was killed, another one works within 20 seconds, and within one second after it was asked to stop.
func TestLeasesOfAllRoles(t *testing.T) {
	t.Parallel()
	s := differential.NewSide(t, "leases", differential.Topic{})
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	driver, _ := upstream.StartDriver(t, func(*csitest.Config) {})
	start := func() (*upstream.Program, *gate) {
		g := newGate(t, s)
		return upstream.Start(t, "volplane", "controller", "--controllers="+strings.Join(app.ClusterControllers(), ","),
			"--csi-address="+driver.Socket, "--kubeconfig="+g.kubeconfig), g
	}
	names := []string{"external-attacher-leader-", "external-resizer-", "external-snapshotter-leader-", ""}
	until := func(what string, p *upstream.Program, text string) {
		t.Helper()
		upstream.Eventually(ctx, t, func() string {
			if strings.Contains(p.Log.String(), text) {
				return ""
			}
			return what
		})
	}
	first, g := start()
	until("the first one does not work", first, "controllers work")
	second, _ := start()
	before := g.leaseWrites()
	minute := time.NewTimer(time.Minute)
	defer minute.Stop()
	<-minute.C
	if n := g.leaseWrites() - before; n > 12 {
		t.Errorf("%d writes of leases in a minute", n)
	}
	n, by := g.open()
	t.Logf("%d watches: %s", n, by)
	until("the second one does not say that it waits", second, "waiting for the lease")
	killed := time.Now()
	first.Kill()
	until("the second one does not work", second, "controllers work")
	took := time.Since(killed)
	t.Logf("another one works %v after the leader was killed", took)
	if took > 20*time.Second {
		t.Errorf("another one works %v after the leader was killed", took)
	}
	third, _ := start()
	until("the third one does not say that it waits", third, "waiting for the lease")
	ended := time.Now()
	second.End()
	until("the third one does not work", third, "controllers work")
	t.Logf("another one works %v after the leader was asked to stop", time.Since(ended))
	third.End()
	for _, name := range names {
		name += strings.ReplaceAll(driver.Name(), ".", "-")
		l, err := s.Client.CoordinationV1().Leases("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil || *l.Spec.HolderIdentity != "" {
			t.Errorf("lease %s is not given back: %v %v", name, l, err)
		}
	}
}
