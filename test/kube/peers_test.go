package kube

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
)

// syncPeriod is the resync period of Kubernetes' binder, which does much of its work only then.
const syncPeriod = 200 * time.Millisecond

// longestRetry is the longest back-off of Kubernetes' provisioner.
const longestRetry = 400 * time.Millisecond

// server is an API server, volplane's or Kubernetes' own.
type server interface {
	AdminConfig() *rest.Config
	AdminKubeconfig() string
	ClientConfig(user string, groups ...string) *rest.Config
}

// side is an API server with controllers of volplane or of Kubernetes.
type side struct {
	name   string
	server server
	client kubernetes.Interface
	// dynamic reaches custom resources.
	dynamic dynamic.Interface
	// storage is the side's driver, memory what was seen of its claims.
	storage *storage
	memory  *memory
	life    *life
	// disturber edits what others have written.
	disturber *disturber
	// conflicts counts the writes of volplane that met one.
	conflicts *atomic.Int64
	// attaching says that what is attached to which node is compared, too.
	attaching bool
	// snapshotting says that snapshots are compared, and nothing else.
	snapshotting bool
	// modifying says that changes of attributes are compared, and nothing else.
	modifying bool
	// sidecars and options are what is chosen for the driver's controllers: of volplane, and of Kubernetes.
	sidecars app.Sidecars
	options  []string
	// patient says that no volume is detached by force for a timeout.
	patient bool
	// maxUnmount is how long a node may take to unmount volumes, 0 for the usual time.
	maxUnmount time.Duration
}

func newSide(t *testing.T, name string) side {
	t.Helper()
	s := side{
		name: name, server: servers.Borrow(t), storage: newStorage(), memory: newMemory(),
		life: &life{}, conflicts: &atomic.Int64{},
	}
	config := s.server.AdminConfig()
	config.QPS = -1
	var err error
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if s.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	s.disturber = newDisturber(s.client)
	s.disturber.start(t)
	return s
}

// ours runs controllers of volplane, each with the rights that it declares, until the test ends or the
// returned function is called.
func (s side) ours(t *testing.T, drivers *csi.Set, roles ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, log := make(chan error, 1), &lastWords{}
	go func() {
		ended <- app.ControlPlane(ctx, app.ControlPlaneOptions{
			ConfigFor: func(role string) (*rest.Config, error) {
				config := s.server.ClientConfig(app.User(role))
				config.Wrap(func(next http.RoundTripper) http.RoundTripper { return watched{next, role, log, s.conflicts} })
				return config, nil
			},
			Roles: roles, Drivers: drivers, DisableForceDetachOnTimeout: s.patient, MaxUnmount: s.maxUnmount,
			Sidecars: s.sidecars, Log: slog.New(slog.NewTextHandler(log, nil)),
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

// watched logs the requests of a role that the API server refuses, since nobody would notice a missing
// event.
type watched struct {
	next http.RoundTripper
	role string
	log  *lastWords
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

// theirBinder has the controllers of Kubernetes that bind claims and volumes.
var theirBinder = []string{
	"persistentvolume-binder-controller", "persistentvolume-protection-controller",
	"persistentvolumeclaim-protection-controller",
}

// theirs runs controllers of Kubernetes until the test ends or the returned function is called.
func (s side) theirs(t *testing.T, controllers ...string) (stop func()) {
	t.Helper()
	return s.run(t, "kube-controller-manager", "--leader-elect=false", "--secure-port=0", "--kube-api-qps=5000",
		"--kube-api-burst=5000",
		"--pvclaimbinder-sync-period="+syncPeriod.String(), "--controllers="+strings.Join(controllers, ","))
}

// theirProvisioner runs Kubernetes' provisioner for a driver until the test ends or the returned function
// is called.
func (s side) theirProvisioner(t *testing.T, driver *csitest.Driver) (stop func()) {
	t.Helper()
	return startProgram(t, "csi-provisioner", s.provisionerArgs(driver)...).kill
}

// provisionerArgs are the arguments of csi-provisioner, whose pauses are short.
func (s side) provisionerArgs(driver *csitest.Driver) []string {
	return []string{
		"--csi-address=" + driver.Socket, "--leader-election=false", "--kube-api-qps=5000", "--kube-api-burst=5000",
		"--timeout=1m", "--worker-threads=" + strconv.Itoa(2*batch), "--retry-interval-start=100ms",
		"--retry-interval-max=" + longestRetry.String(), "--kubeconfig=" + s.server.AdminKubeconfig(),
	}
}

// run runs a program of Kubernetes as the administrator of the side's API server until the test ends or the
// returned function is called.
func (s side) run(t *testing.T, name string, args ...string) (stop func()) {
	t.Helper()
	return startProgram(t, name, append(args, "--kubeconfig="+s.server.AdminKubeconfig())...).kill
}
