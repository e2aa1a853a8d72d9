package provisioner

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/testkit/clientset"
)

// TestAStepThatIsNotKnown: it fails with an error that names it, without a call and without a panic.
func TestAStepThatIsNotKnown(t *testing.T) {
	p := &provisioner{}
	plan := provision.Plan{Step: 99}
	if result, waits := p.waits(claim(t, ""), plan); waits {
		t.Errorf("it waits: %+v", result)
	}
	err := p.apply(t.Context(), claim(t, ""), plan)
	if !errors.Is(err, errStep) || !strings.Contains(err.Error(), "99") {
		t.Errorf("%v, want an error that names the step", err)
	}
}

// TestLacks: a driver without controller service has no capability of it either.
func TestLacks(t *testing.T) {
	for want, d := range map[string]*csi.Driver{
		"CONTROLLER_SERVICE":   {},
		"CREATE_DELETE_VOLUME": {Plugin: csi.PluginCapabilities{ControllerService: true}},
		"": {
			Plugin: csi.PluginCapabilities{ControllerService: true}, Controller: csi.ControllerCapabilities{CreateDelete: true},
		},
	} {
		if got := lacks(d); got != want {
			t.Errorf("lacks %q, want %q", got, want)
		}
	}
}

// TestBlockDrivers: only a driver that attaches, stages and expands is certain to have block devices.
func TestBlockDrivers(t *testing.T) {
	full := csitest.Full()
	for n, want := range []bool{true, false, false, false} {
		d := &csi.Driver{Controller: full.Controller, Node: full.Node}
		d.Controller.PublishUnpublish, d.Node.StageUnstage, d.Node.Expand = n != 1, n != 2, n != 3
		if got := isBlockDriver(d); got != want {
			t.Errorf("without %d: %v", n, got)
		}
	}
}

// customResource is a client whose server has one custom resource, as JSON.
type customResource struct {
	kubernetes.Interface
	discovery.DiscoveryInterfaces
	body []byte
}

// Discovery has the way to custom resources.
func (c *customResource) Discovery() discovery.DiscoveryInterfaces { return c }

// RESTClient implements discovery.DiscoveryInterfaces.
func (c *customResource) RESTClient() rest.Interface {
	return &restfake.RESTClient{
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(), GroupVersion: schema.GroupVersion{Version: "v1"},
		Client: restfake.CreateHTTPClient(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut {
				var err error
				if c.body, err = io.ReadAll(r.Body); err != nil {
					return nil, err
				}
			}
			return &http.Response{
				StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(bytes.NewReader(c.body)),
			}, nil
		}),
	}
}

// TestFieldsOfLaterVersionsStay: the finalizer is written to a snapshot as the API server has it, with the fields that
// only later versions of the custom resource know.
func TestFieldsOfLaterVersionsStay(t *testing.T) {
	c := &customResource{Interface: clientset.New(), body: []byte(`{"apiVersion":"snapshot.storage.k8s.io/v1",` +
		`"kind":"VolumeSnapshot","metadata":{"namespace":"ns","name":"shot"},"spec":{"theirs":true}}`)}
	p := &provisioner{Env: controller.Env{Client: c}}
	if err := p.changeSnapshot(t.Context(), "ns", "shot", true); err != nil {
		t.Fatal(err)
	}
	want := `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"finalizers":` +
		`["provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"],"name":"shot","namespace":"ns"},` +
		`"spec":{"theirs":true}}`
	if got := strings.TrimSpace(string(c.body)); got != want {
		t.Errorf("the snapshot became %s, not %s", got, want)
	}
}
