package hosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const driverName = "array.example.com"

// array is storage that all hosts reach: a directory for each volume. Like a
// real one it takes writes only from hosts that a volume is published to.
type array struct {
	dir string

	// mu is held for reading during a write: who is cut off has no write under
	// way any more.
	mu    sync.RWMutex
	disks map[string]*disk
	// asking counts the calls to publish and unpublish that are under way, by the
	// host that they came by; those of two hosts are of two leaders.
	asking map[string]int
	asked  int
	// held is the next call that does not end before its caller gives up.
	held *held
	// wrong is what must never have happened.
	wrong []string
}

// held is a call that hangs, after its work or before.
type held struct {
	method string
	after  bool
	began  chan struct{}
}

type disk struct {
	// at are the hosts that it is published to.
	at map[string]bool
	// targets are where it is mounted, by host.
	targets map[string]string
	// written and refused count writes by host.
	written, refused map[string]int
}

func newArray(dir string) *array {
	return &array{dir: dir, disks: map[string]*disk{}, asking: map[string]int{}}
}

func (a *array) path(id string) string { return filepath.Join(a.dir, id) }

func (a *array) complain(format string, args ...any) {
	a.wrong = append(a.wrong, fmt.Sprintf(format, args...))
}

// holders returns the hosts that may write to a volume now.
func (a *array) holders(id string) []string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if d := a.disks[id]; d != nil {
		return slices.Sorted(maps.Keys(d.at))
	}
	return nil
}

// hold has the next call of a method hang; the channel is closed when it does.
func (a *array) hold(method string, after bool) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = &held{method, after, make(chan struct{})}
	return a.held.began
}

// asks lets a call of a host do its work. Calls of another one may not be under
// way.
func (a *array) asks(ctx context.Context, host, method string, work func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	for other, n := range a.asking {
		if other != host && n > 0 {
			a.complain("%s calls %s while %d calls by %s are under way", host, method, n, other)
		}
	}
	a.asking[host]++
	defer func() { a.asking[host]-- }()
	h := a.held
	if h == nil || h.method != method {
		return work()
	}
	a.held = nil
	if h.after {
		if err := work(); err != nil {
			return err
		}
	}
	close(h.began)
	a.mu.Unlock()
	<-ctx.Done()
	a.mu.Lock()
	return ctx.Err()
}

// calls is how often somebody asked to publish or unpublish.
func (a *array) calls() int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.asked
}

// counts returns how often a host has written to a volume, and was refused.
func (a *array) counts(id, host string) (written, refused int) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.disks[id].written[host], a.disks[id].refused[host]
}

// write has a host write to all that is mounted there, as a program that runs
// there would: with a lock, which nobody else may have.
func (a *array) write(host string) {
	a.mu.RLock()
	var found []string
	counts := map[string]bool{}
	for id, d := range a.disks {
		target := d.targets[host]
		if target == "" {
			continue
		}
		counts[id] = d.at[host]
		if d.at[host] {
			if why := writeTo(target, host); why != "" {
				found = append(found, why)
			}
		}
	}
	a.mu.RUnlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wrong = append(a.wrong, found...)
	for id, took := range counts {
		switch d := a.disks[id]; {
		case d == nil:
		case took:
			d.written[host]++
		default:
			d.refused[host]++
		}
	}
}

// writeTo returns what was wrong with a write; "" is nothing.
func writeTo(target, host string) string {
	lock := filepath.Join(target, "lock")
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		other, _ := os.ReadFile(lock)
		return fmt.Sprintf("%s writes while %s does", host, other)
	}
	if err != nil {
		// What is not mounted any more cannot be written to.
		return ""
	}
	_, _ = f.WriteString(host)
	_ = f.Close()
	if err := os.Remove(lock); err != nil {
		return fmt.Sprintf("the lock of %s was lost: %v", host, err)
	}
	return ""
}

// service is the array's driver on one host.
type service struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer
	*array
	host, socket string
}

func socketOf(root string) string { return filepath.Join(root, "plugins", driverName, "csi.sock") }

// serve has a driver on a host, whose node agent has a root directory.
func (a *array) serve(t *testing.T, host, root string) {
	t.Helper()
	s := &service{array: a, host: host, socket: socketOf(root)}
	registration := filepath.Join(root, "plugins_registry", driverName+"-reg.sock")
	for _, path := range []string{s.socket, registration} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		t.Cleanup(server.Stop)
		csipb.RegisterIdentityServer(server, s)
		csipb.RegisterControllerServer(server, s)
		csipb.RegisterNodeServer(server, s)
		registerapi.RegisterRegistrationServer(server, s)
		go func() { _ = server.Serve(listener) }()
	}
}

func (s *service) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: driverName, Endpoint: s.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (s *service) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (s *service) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: driverName, VendorVersion: "1"}, nil
}

func (s *service) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	return &csipb.GetPluginCapabilitiesResponse{
		Capabilities: []*csipb.PluginCapability{{Type: &csipb.PluginCapability_Service_{
			Service: &csipb.PluginCapability_Service{Type: csipb.PluginCapability_Service_CONTROLLER_SERVICE},
		}}},
	}, nil
}

func (s *service) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{}, nil
}

func (s *service) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	r := &csipb.ControllerGetCapabilitiesResponse{}
	for _, c := range []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	} {
		r.Capabilities = append(r.Capabilities,
			&csipb.ControllerServiceCapability{Type: &csipb.ControllerServiceCapability_Rpc{
				Rpc: &csipb.ControllerServiceCapability_RPC{Type: c},
			}})
	}
	return r, nil
}

func (s *service) CreateVolume(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.GetName()
	if s.disks[id] == nil {
		if err := os.MkdirAll(s.path(id), 0o700); err != nil {
			return nil, err
		}
		s.disks[id] = &disk{
			at: map[string]bool{}, targets: map[string]string{}, written: map[string]int{}, refused: map[string]int{},
		}
	}
	return &csipb.CreateVolumeResponse{
		Volume: &csipb.Volume{VolumeId: id, CapacityBytes: r.GetCapacityRange().GetRequiredBytes()},
	}, nil
}

func (s *service) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.disks[r.GetVolumeId()]; d != nil && len(d.at)+len(d.targets) > 0 {
		s.complain("volume %s is deleted while hosts have it: %v, mounted %v", r.GetVolumeId(), d.at, d.targets)
	}
	delete(s.disks, r.GetVolumeId())
	return &csipb.DeleteVolumeResponse{}, os.RemoveAll(s.path(r.GetVolumeId()))
}

// ControllerPublishVolume opens a volume for a host. A second one is never to be
// asked for: the volumes here are for one at a time.
func (s *service) ControllerPublishVolume(
	ctx context.Context, r *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	return &csipb.ControllerPublishVolumeResponse{}, s.asks(ctx, s.host, "publish", func() error {
		d := s.disks[r.GetVolumeId()]
		if d == nil {
			return status.Error(codes.NotFound, "no such volume")
		}
		if len(d.at) > 0 && !d.at[r.GetNodeId()] {
			s.complain("volume %s is asked for at %s while %v has it", r.GetVolumeId(), r.GetNodeId(), d.at)
			return status.Error(codes.FailedPrecondition, "another host has the volume")
		}
		d.at[r.GetNodeId()] = true
		return nil
	})
}

// ControllerUnpublishVolume cuts a host off, whatever it has mounted.
func (s *service) ControllerUnpublishVolume(
	ctx context.Context, r *csipb.ControllerUnpublishVolumeRequest,
) (*csipb.ControllerUnpublishVolumeResponse, error) {
	return &csipb.ControllerUnpublishVolumeResponse{}, s.asks(ctx, s.host, "unpublish", func() error {
		if d := s.disks[r.GetVolumeId()]; d != nil {
			delete(d.at, r.GetNodeId())
		}
		return nil
	})
}

func (s *service) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	return &csipb.NodeGetCapabilitiesResponse{}, nil
}

func (s *service) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: s.host}, nil
}

func (s *service) NodePublishVolume(
	_ context.Context, r *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.disks[r.GetVolumeId()]
	if d == nil || !d.at[s.host] {
		s.complain("volume %s is mounted at %s, which does not have it", r.GetVolumeId(), s.host)
		return nil, status.Error(codes.FailedPrecondition, "the volume is not published to this host")
	}
	target := r.GetTargetPath()
	if d.targets[s.host] == target {
		return &csipb.NodePublishVolumeResponse{}, nil
	}
	if err := os.MkdirAll(target, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount(s.path(r.GetVolumeId()), target, "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	d.targets[s.host] = target
	return &csipb.NodePublishVolumeResponse{}, nil
}

func (s *service) NodeUnpublishVolume(
	_ context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	target := r.GetTargetPath()
	if err := unix.Unmount(target, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if d := s.disks[r.GetVolumeId()]; d != nil && d.targets[s.host] == target {
		delete(d.targets, s.host)
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}
