package integration

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/standalonetest"
	"volplane.dev/volplane/test/internal/servers"
)

const inlineName = "inline.example.com"

// inlineDriver publishes an empty filesystem at each target.
type inlineDriver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer

	socket string

	mu       sync.Mutex
	requests []*csipb.NodePublishVolumeRequest
}

func (d *inlineDriver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: inlineName, Endpoint: d.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (d *inlineDriver) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (d *inlineDriver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{}, nil
}

func (d *inlineDriver) GetPluginInfo(
	context.Context, *csipb.GetPluginInfoRequest,
) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: inlineName, VendorVersion: "1"}, nil
}

func (d *inlineDriver) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	return &csipb.GetPluginCapabilitiesResponse{}, nil
}

func (d *inlineDriver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	return &csipb.NodeGetCapabilitiesResponse{}, nil
}

func (d *inlineDriver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: "n1"}, nil
}

func (d *inlineDriver) NodePublishVolume(
	_ context.Context, r *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests = append(d.requests, r)
	if _, mounted, err := mount.At(r.GetTargetPath()); err != nil || mounted {
		return &csipb.NodePublishVolumeResponse{}, err
	}
	if err := os.Mkdir(r.GetTargetPath(), 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return &csipb.NodePublishVolumeResponse{}, unix.Mount("inline", r.GetTargetPath(), "tmpfs", 0, "")
}

func (d *inlineDriver) NodeUnpublishVolume(
	_ context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	return &csipb.NodeUnpublishVolumeResponse{},
		errors.Join(mount.Unmount(r.GetTargetPath()), mount.Remove(r.GetTargetPath()))
}

// serve serves the driver for the agent in dir until the test ends.
func (d *inlineDriver) serve(t *testing.T, dir string) {
	t.Helper()
	d.socket = filepath.Join(dir, "plugins_registry", "inline.sock")
	if err := os.MkdirAll(filepath.Dir(d.socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csipb.RegisterIdentityServer(server, d)
	csipb.RegisterNodeServer(server, d)
	registerapi.RegisterRegistrationServer(server, d)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
}

// first waits for the first publish request and returns it.
func (d *inlineDriver) first(h *host) *csipb.NodePublishVolumeRequest {
	h.t.Helper()
	var r *csipb.NodePublishVolumeRequest
	h.eventually(func() string {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.requests) == 0 {
			return "nothing was published"
		}
		r = d.requests[0]
		return ""
	})
	return r
}

// newInlineHost runs a node agent with the rights of a node, and a driver of inline volumes.
func newInlineHost(t *testing.T, spec storagev1.CSIDriverSpec) (*host, *inlineDriver) {
	t.Helper()
	t.Parallel()
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{
		t: t, server: servers.Borrow(t), dir: dir, drivers: csi.NewSet(),
		log: slog.New(slog.DiscardHandler),
	}
	t.Cleanup(func() {
		points, _ := mount.Below(dir)
		for _, p := range points {
			_ = unix.Unmount(p.Path, unix.MNT_DETACH)
		}
		_ = os.RemoveAll(dir)
	})
	h.client = standalonetest.Client(t, h.server, "")
	spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
	_, err = h.client.StorageV1().CSIDrivers().Create(t.Context(),
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: inlineName}, Spec: spec}, metav1.CreateOptions{})
	h.must(err)
	h.part(func(ctx context.Context) error {
		return app.ControlPlane(ctx, app.ControlPlaneOptions{
			ConfigFor: func(role string) (*rest.Config, error) { return h.server.ClientConfig(app.User(role)), nil },
			Drivers:   h.drivers, Log: h.log,
		}, func() {})
	})
	d := &inlineDriver{}
	d.serve(t, dir)
	h.startAgent()
	return h, d
}

// inlinePod creates a Pod with an inline volume, and with a service account unless that is empty.
func (h *host) inlinePod(name, secret, account string) {
	h.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.NodeName, p.Spec.ServiceAccountName = "n1", account
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	source := &corev1.CSIVolumeSource{Driver: inlineName}
	if secret != "" {
		source.NodePublishSecretRef = &corev1.LocalObjectReference{Name: secret}
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{CSI: source}}}
	_, err := h.client.CoreV1().Pods("default").Create(h.t.Context(), p, metav1.CreateOptions{})
	h.must(err)
}

// TestNodeInlineVolumes: the node may read the Pod's Secret. An agent that has lost its journal adopts and
// unpublishes the volume.
func TestNodeInlineVolumes(t *testing.T) {
	h, d := newInlineHost(t, storagev1.CSIDriverSpec{})
	_, err := h.client.CoreV1().Secrets("default").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"key": "hidden"}},
		metav1.CreateOptions{})
	h.must(err)
	h.inlinePod("p", "s", "")
	path := h.mounted("p")
	if got := d.first(h).GetSecrets()["key"]; got != "hidden" {
		t.Errorf("the secret is %q", got)
	}
	h.must(os.WriteFile(filepath.Join(path, "f"), []byte("kept"), 0o600))
	h.stopAgent()
	h.must(os.RemoveAll(filepath.Join(h.dir, "journal")))
	h.startAgent()
	h.eventually(func() string {
		if files, _ := filepath.Glob(filepath.Join(h.dir, "journal", "*.json")); len(files) != 1 {
			return "the record is not there again"
		}
		return ""
	})
	if got, err := os.ReadFile(filepath.Join(path, "f")); err != nil || string(got) != "kept" {
		t.Errorf("read %q, %v", got, err)
	}
	h.remove("p")
	h.gone("p")
	h.clean()
}

// TestNodeTokens: a driver that wants a token of the Pod's service account gets one for this Pod and for
// its audience, which the node itself requests. Without a token the volume is not published, and the Pod's
// condition says why.
func TestNodeTokens(t *testing.T) {
	h, d := newInlineHost(t, storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "vault"}}})
	h.inlinePod("stranger", "", "unknown")
	h.eventually(func() string {
		events, err := h.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		h.must(err)
		for _, e := range events.Items {
			if e.Reason == string(volume.ReasonFailedMount) &&
				strings.Contains(e.Message, `token of service account default/unknown for audience "vault"`) {
				return ""
			}
		}
		return "the Pod is not told"
	})
	d.mu.Lock()
	if len(d.requests) > 0 {
		t.Error("the driver was called without a token")
	}
	d.mu.Unlock()
	h.remove("stranger")
	h.gone("stranger")

	h.inlinePod("p", "", "")
	h.mounted("p")
	var tokens map[string]authenticationv1.TokenRequestStatus
	h.must(json.Unmarshal([]byte(d.first(h).GetVolumeContext()["csi.storage.k8s.io/serviceAccount.tokens"]), &tokens))
	review, err := h.client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: tokens["vault"].Token, Audiences: []string{"vault"}},
	}, metav1.CreateOptions{})
	h.must(err)
	user := review.Status.User
	if !review.Status.Authenticated || user.Username != "system:serviceaccount:default:default" ||
		!slices.Equal(user.Extra["authentication.kubernetes.io/pod-name"], []string{"p"}) {
		t.Errorf("the token says %+v", review.Status)
	}
	h.remove("p")
	h.gone("p")
	h.clean()
}
