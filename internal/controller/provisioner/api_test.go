package provisioner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// api is an API server that has the custom resources of snapshots, too.
type api struct {
	*kubetest.API
	snapshots *snapshots
}

var errLost = errors.New("the answer is lost")

func newAPI(t *testing.T, deaf bool, objects ...runtime.Object) *api {
	a := &api{
		API:       kubetest.NewAPI(t, objects...),
		snapshots: &snapshots{bodies: map[string]string{}, refuses: map[string]int{}},
	}
	if deaf {
		a.Silence()
	}
	return a
}

// did returns what was done to objects, in order, and what was read live.
func (a *api) did(verbs ...string) []string {
	var out []string
	for _, x := range a.Actions() {
		if !slices.Contains(verbs, x.GetVerb()) || x.GetResource().Resource == "events" {
			continue
		}
		name := ""
		switch y := x.(type) {
		case clienttesting.CreateActionImpl:
			name = named(y.GetObject())
		case clienttesting.UpdateActionImpl:
			name = named(y.GetObject())
		case interface{ GetName() string }:
			name = y.GetName()
		}
		out = append(out, x.GetVerb()+" "+x.GetResource().Resource+" "+name)
	}
	return out
}

func (a *api) writes() []string {
	return a.did("create", "update", "patch", "delete")
}

func named(o runtime.Object) string {
	m, err := meta.Accessor(o)
	if err != nil {
		return err.Error()
	}
	return m.GetName()
}

// with returns a client that has a way to custom resources.
func (a *api) with(client kubernetes.Interface) kubernetes.Interface {
	return customized{client, a.snapshots}
}

type customized struct {
	kubernetes.Interface
	snapshots *snapshots
}

// Discovery has the way.
func (c customized) Discovery() discovery.DiscoveryInterfaces {
	return discovering{c.Interface.Discovery(), &restfake.RESTClient{
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(), GroupVersion: schema.GroupVersion{Version: "v1"},
		Client: &http.Client{Transport: c.snapshots},
	}}
}

type discovering struct {
	discovery.DiscoveryInterfaces
	rest rest.Interface
}

func (d discovering) RESTClient() rest.Interface { return d.rest }

// snapshots serves custom resources: bodies by what follows the version in paths.
type snapshots struct {
	mu     sync.Mutex
	bodies map[string]string
	// refuses are the codes by which requests are refused, by verb and path.
	refuses map[string]int
	// absent says that the server knows no such resources.
	absent  bool
	written []string
}

// RoundTrip answers one request.
func (s *snapshots) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, known := strings.CutPrefix(r.URL.Path, "/apis/"+volume.GroupSnapshot+"/v1/")
	if s.absent || !known {
		return answer(http.StatusNotFound, "text/plain", "404 page not found"), nil
	}
	if code := s.refuses[r.Method+" "+path]; code != 0 {
		return refusal(code), nil
	}
	if path == volume.ResourceSnapshots {
		return answer(http.StatusOK, "application/json", s.list()), nil
	}
	body, there := s.bodies[path]
	if !there {
		return refusal(http.StatusNotFound), nil
	}
	if r.Method == http.MethodPut {
		got, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(got)
		s.bodies[path], s.written = body, append(s.written, r.Header.Get("Content-Type")+" "+path)
	}
	return answer(http.StatusOK, "application/json", body), nil
}

func (s *snapshots) list() string {
	var all []string
	for _, path := range slices.Sorted(maps.Keys(s.bodies)) {
		if strings.Contains(path, "/"+volume.ResourceSnapshots+"/") {
			all = append(all, s.bodies[path])
		}
	}
	return `{"kind":"VolumeSnapshotList","items":[` + strings.Join(all, ",") + `]}`
}

// has returns what is kept under a path.
func (s *snapshots) has(t *testing.T, path string) any {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var o any
	if err := json.Unmarshal([]byte(s.bodies[path]), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func (s *snapshots) put(path, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies[path] = body
}

func (s *snapshots) refuse(request string, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses[request] = code
}

func refusal(code int) *http.Response {
	return answer(code, "application/json",
		fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"refused"}`,
			map[int]metav1.StatusReason{
				403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonConflict,
			}[code], code))
}

func answer(code int, kind, body string) *http.Response {
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body)),
	}
}
