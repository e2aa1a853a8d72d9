package bridge

import (
	"context"
	"net"
	"path/filepath"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/registrar"
	decide "volplane.dev/volplane/internal/decide/flex"
	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/process/socket"
	"volplane.dev/volplane/internal/volume"
)

// driver serves one FlexVolume driver as a CSI driver.
type driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	ability

	b    *Bridge
	name decide.Name
	csi  string
	// secrets holds the secrets of all requests.
	secrets redact.Secrets
}

// server is the running server of one driver's socket.
type server struct {
	driver *driver
	stop   context.CancelFunc
	// ended is closed when the server has stopped.
	ended chan struct{}
}

// running says whether the server runs.
func (s *server) running() bool {
	if s == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// end stops the server and returns when it has stopped. A nil server has stopped.
func (s *server) end() {
	if s != nil {
		s.stop()
		<-s.ended
	}
}

// serve starts to serve a driver. If that fails, it logs the error and returns nil.
func (b *Bridge) serve(ctx context.Context, n decide.Name, a ability) *server {
	name, err := n.CSI()
	if err != nil {
		b.Log.Error("driver cannot be served", "driver", n.String(), "err", err)
		return nil
	}
	d := &driver{ability: a, b: b, name: n, csi: name}
	endpoint := filepath.Join(b.SocketDir, name, "csi.sock")
	at, err := socket.Listen(ctx, endpoint)
	if err != nil {
		b.Log.Error("driver cannot be served", "driver", name, "err", err)
		return nil
	}
	if b.Changed != nil {
		b.Changed(Served{Name: name, Flex: n.String(), Attach: a.Attach})
	}
	ctx, stop := context.WithCancel(ctx)
	s := &server{driver: d, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		defer stop()
		if err := d.run(ctx, at, endpoint); err != nil {
			b.Log.Error("driver is no longer served", "driver", name, "err", err)
		}
	}()
	b.Log.Info("driver is served", "driver", name, "socket", endpoint, "attach", a.Attach)
	return s
}

// run serves the socket and registers the driver, until ctx ends or the registration is refused.
func (d *driver) run(ctx context.Context, at net.Listener, endpoint string) error {
	server := grpc.NewServer(grpc.UnaryInterceptor(d.answer))
	csipb.RegisterIdentityServer(server, d)
	csipb.RegisterNodeServer(server, d)
	csipb.RegisterControllerServer(server, d)
	defer func() {
		defer time.AfterFunc(stopTimeout, server.Stop).Stop()
		server.GracefulStop()
	}()
	r := registrar.Registrar{Driver: d.csi, Endpoint: endpoint, Log: d.b.Log}
	if d.b.RegistryDir != "" {
		r.Path = registrar.Path(d.b.RegistryDir, d.csi)
	}
	return r.Serve(ctx, server, at)
}

// answer refuses ids and paths that cannot be used, gives errors their gRPC codes and removes secrets
// from them, including those of earlier requests.
func (d *driver) answer(
	ctx context.Context, request any, call *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (answer any, err error) {
	if s, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		d.secrets.AddData(s.GetSecrets())
	}
	do := func() (any, error) {
		if err = checkRequest(request); err == nil {
			answer, err = next(ctx, request)
		}
		return answer, failure(err, &d.secrets)
	}
	if d.b.Calls == nil {
		return do()
	}
	about := csi.Made{Driver: d.csi, Method: call.FullMethod, Request: request, Secrets: &d.secrets}
	err = d.b.Calls.Log(csi.About(ctx, csi.Subject{Node: d.b.Node}), about, do)
	return answer, err
}

// ready returns the driver for calls that attach or mount.
func (d *driver) ready() (*flex.Driver, error) { return d.b.Host.Get(d.name) }

// kept returns the driver for calls that unmount or detach; if it is broken or removed, its last
// good version (H16).
func (d *driver) kept() (*flex.Driver, error) { return d.b.Host.Kept(d.name) }

// unknownVersion is the version of a driver that is not ready.
const unknownVersion = "none"

// Object returns the CSIDriver object that a driver needs.
func Object(s Served) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name, Labels: map[string]string{volume.LabelMadeBy: volume.Program},
			Annotations: map[string]string{volume.AnnFlexDriver: s.Flex},
		},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: ptr.To(s.Attach),
			// The driver gets the Pod's name with each mount (F-008), and inline volumes are
			// recognized.
			PodInfoOnMount: ptr.To(true),
			// The fsGroup is passed to the driver, and the bridge changes the files.
			FSGroupPolicy: ptr.To(storagev1.FileFSGroupPolicy),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{
				storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral,
			},
		},
	}
}

// GetPluginInfo returns the driver's name; its version is the hash of its executable.
func (d *driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	version := unknownVersion
	if now, err := d.kept(); err == nil {
		version = now.Hash
	}
	return &csipb.GetPluginInfoResponse{Name: d.csi, VendorVersion: version}, nil
}

// Probe says whether the driver is ready. It also says so for a driver that has volumes to unmount:
// callers do not call a driver that is not ready.
func (d *driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	_, err := d.ready()
	if err != nil && len(d.b.records.list(d.name, func(r *record) bool { return r.Kind != made })) == 0 {
		return nil, err
	}
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginCapabilities returns the capabilities of the identity service. The controller service of a driver that
// neither attaches nor makes volumes says so itself: volumes that an earlier version has attached are detached then.
func (d *driver) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	return csi.PluginCapabilities{ControllerService: true, OnlineExpansion: d.expand}.Answer(), nil
}
