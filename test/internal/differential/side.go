package differential

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/servers"
	"volplane.dev/volplane/test/internal/upstream"
)

// Side is an API server with controllers of volplane or of Kubernetes.
type Side struct {
	Name   string
	Server upstream.Server
	Client kubernetes.Interface
	// Dynamic reaches custom resources.
	Dynamic dynamic.Interface
	// Storage is the side's driver, and memory what was observed of its claims.
	Storage *Storage
	Memory  *memory
	Life    *life
	// disturber edits what others have written.
	disturber *disturber
	// Conflicts counts the writes of volplane that met one.
	Conflicts *atomic.Int64
	// Topic is what is compared.
	Topic Topic
	// Sidecars and options are the settings of the driver's controllers: of volplane, and of Kubernetes.
	Sidecars app.Sidecars
	Options  []string
	// Patient says that no volume is detached by force for a timeout.
	Patient bool
	// MaxUnmount is how long a node may take to unmount volumes, 0 means the usual time.
	MaxUnmount time.Duration
}

// NewSide borrows an API server for a side, where nothing runs yet.
func NewSide(t *testing.T, name string, about Topic) Side {
	t.Helper()
	s := Side{
		Name: name, Server: servers.Borrow(t), Storage: newStorage(), Memory: newMemory(),
		Topic: about, Life: &life{}, Conflicts: &atomic.Int64{},
	}
	config := s.Server.AdminConfig()
	config.QPS = -1
	var err error
	if s.Client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if s.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	s.disturber = newDisturber(s.Client)
	s.disturber.start(t)
	return s
}

// Ours runs controllers of volplane, each with the rights that it declares, until the test ends or the
// returned function is called.
func (s Side) Ours(t *testing.T, drivers *csi.Set, roles ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, log := make(chan error, 1), &upstream.LastWords{}
	go func() {
		ended <- app.ControlPlane(ctx, app.ControlPlaneOptions{
			ConfigFor: func(role string) (*rest.Config, error) {
				config := s.Server.ClientConfig(app.User(role))
				config.Wrap(func(next http.RoundTripper) http.RoundTripper { return watched{next, role, log, s.Conflicts} })
				return config, nil
			},
			Roles: roles, Drivers: drivers, DisableForceDetachOnTimeout: s.Patient, MaxUnmount: s.MaxUnmount,
			Sidecars: s.Sidecars, Log: slog.New(slog.NewTextHandler(log, nil)),
		}, func() {})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if said := log.String(); t.Failed() || strings.Contains(said, refusal) || strings.Contains(said, "not declared") {
			t.Errorf("volplane said:\n%s", said)
		}
	})
	t.Cleanup(stop)
	return stop
}

// refusal is the beginning of a log line about a request that the API server refuses.
const refusal = "the API server refuses"

// watched logs the requests of a role that the API server refuses, since a missing event would go
// unnoticed.
type watched struct {
	next http.RoundTripper
	role string
	log  *upstream.LastWords
	// conflicts counts those of the API server, unless it is nil.
	conflicts *atomic.Int64
}

func (r watched) RoundTrip(req *http.Request) (*http.Response, error) {
	got, err := r.next.RoundTrip(req)
	if err == nil && got.StatusCode == http.StatusConflict && r.conflicts != nil &&
		(req.Method == http.MethodPut || req.Method == http.MethodPatch) {
		r.conflicts.Add(1)
	}
	if err == nil && got.StatusCode == http.StatusForbidden && !ending(got) {
		fmt.Fprintln(r.log, refusal, r.role, req.Method, req.URL.Path)
	}
	return got, err
}

// ending says whether a request is refused because the namespace is being deleted, and not because a right
// is missing.
func ending(got *http.Response) bool {
	body, err := io.ReadAll(got.Body)
	_ = got.Body.Close()
	got.Body = io.NopCloser(bytes.NewReader(body))
	return err == nil && bytes.Contains(body, []byte(corev1.NamespaceTerminatingCause))
}

// Theirs runs controllers of Kubernetes until the test ends or the returned function is called.
func (s Side) Theirs(t *testing.T, controllers ...string) (stop func()) {
	t.Helper()
	return s.Run(t, "kube-controller-manager", "--leader-elect=false", "--secure-port=0", "--kube-api-qps=5000",
		"--kube-api-burst=5000",
		"--pvclaimbinder-sync-period="+upstream.SyncPeriod.String(), "--controllers="+strings.Join(controllers, ","))
}

// TheirProvisioner runs Kubernetes' provisioner for a driver until the test ends or the returned function
// is called.
func (s Side) TheirProvisioner(t *testing.T, driver *csitest.Driver) (stop func()) {
	t.Helper()
	return upstream.Start(t, "csi-provisioner", s.ProvisionerArgs(driver)...).Kill
}

// ProvisionerArgs are the arguments of csi-provisioner, whose pauses are short.
func (s Side) ProvisionerArgs(driver *csitest.Driver) []string {
	return []string{
		"--csi-address=" + driver.Socket, "--leader-election=false", "--kube-api-qps=5000", "--kube-api-burst=5000",
		"--timeout=1m", "--worker-threads=" + strconv.Itoa(2*Batch), "--retry-interval-start=100ms",
		"--retry-interval-max=" + upstream.LongestRetry.String(), "--kubeconfig=" + s.Server.AdminKubeconfig(),
	}
}

// Run runs a program of Kubernetes as the administrator of the side's API server until the test ends or the
// returned function is called.
func (s Side) Run(t *testing.T, name string, args ...string) (stop func()) {
	t.Helper()
	return upstream.Start(t, name, append(args, "--kubeconfig="+s.Server.AdminKubeconfig())...).Kill
}
