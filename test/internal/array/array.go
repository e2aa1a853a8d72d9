package array

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

// Driver is the name of the driver.
const Driver = "array.example.com"

// Array is storage that all hosts reach. Each volume is a directory. Like a real storage array, it accepts
// writes only from hosts to which the volume is published.
type Array struct {
	// OnCall is called in each call to the controller, with the host on which the driver was called; it may be nil.
	OnCall func(ctx context.Context, host string)

	dir string

	// mu is held for reading during a write, so a host whose volume was unpublished has no write in flight.
	mu    sync.RWMutex
	disks map[string]*disk
	// inFlight counts the calls to the controller that are in flight, by the host on which the driver was called.
	// Calls on two hosts come from two leaders.
	inFlight map[string]int
	// calls counts all calls to the controller.
	calls int
	// held is the call to hold next.
	held *heldCall
	// violations describes events that must never happen.
	violations []string
}

// heldCall is a call that hangs until its caller gives up.
type heldCall struct {
	method string
	// afterWork says that the call does its work before it hangs.
	afterWork bool
	// reached is closed when the call hangs.
	reached chan struct{}
}

type disk struct {
	// publishedTo is the set of hosts that may write.
	publishedTo map[string]bool
	// targets are the paths at which the volume is mounted, by host.
	targets map[string]string
	// written and refused count writes by host.
	written, refused map[string]int
}

// New returns an array without volumes, which will be below a directory.
func New(dir string) *Array {
	return &Array{dir: dir, disks: map[string]*disk{}, inFlight: map[string]int{}}
}

func (a *Array) path(id string) string { return filepath.Join(a.dir, id) }

// violation records that something happened that must never happen.
func (a *Array) violation(format string, args ...any) {
	a.violations = append(a.violations, fmt.Sprintf(format, args...))
}

// Violations describes events that must never happen.
func (a *Array) Violations() []string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Clone(a.violations)
}

// Volumes returns the ids of all volumes.
func (a *Array) Volumes() []string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.disks))
}

// Mounted returns the hosts at which a volume is mounted.
func (a *Array) Mounted(id string) []string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if d := a.disks[id]; d != nil {
		return slices.Sorted(maps.Keys(d.targets))
	}
	return nil
}

// Holders returns the hosts that may write to a volume.
func (a *Array) Holders(id string) []string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if d := a.disks[id]; d != nil {
		return slices.Sorted(maps.Keys(d.publishedTo))
	}
	return nil
}

// HoldNext makes the next call of a method hang. The returned channel is closed when it does.
func (a *Array) HoldNext(method string, afterWork bool) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = &heldCall{method, afterWork, make(chan struct{})}
	return a.held.reached
}

// call performs a call on a host. It is a violation if a call on another host is in flight.
func (a *Array) call(ctx context.Context, host, method string, work func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	for other, n := range a.inFlight {
		if other != host && n > 0 {
			a.violation("%s calls %s while %d calls by %s are in flight", host, method, n, other)
		}
	}
	a.inFlight[host]++
	defer func() { a.inFlight[host]-- }()
	if a.OnCall != nil {
		a.mu.Unlock()
		a.OnCall(ctx, host)
		a.mu.Lock()
	}
	h := a.held
	if h == nil || h.method != method {
		return work()
	}
	a.held = nil
	if h.afterWork {
		if err := work(); err != nil {
			return err
		}
	}
	close(h.reached)
	a.mu.Unlock()
	<-ctx.Done()
	a.mu.Lock()
	return ctx.Err()
}

// CallCount returns the number of calls to the controller.
func (a *Array) CallCount() int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.calls
}

// Counts returns the numbers of a host's successful and refused writes to a volume.
func (a *Array) Counts(id, host string) (written, refused int) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.disks[id].written[host], a.disks[id].refused[host]
}

// Write makes a host write to all volumes that are mounted there, like a program on the host. Each write takes a lock
// that no other host may have.
func (a *Array) Write(host string) {
	a.mu.RLock()
	var violations []string
	allowed := map[string]bool{}
	for id, d := range a.disks {
		target := d.targets[host]
		if target == "" {
			continue
		}
		allowed[id] = d.publishedTo[host]
		if d.publishedTo[host] {
			if text := writeTo(target, host); text != "" {
				violations = append(violations, text)
			}
		}
	}
	a.mu.RUnlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.violations = append(a.violations, violations...)
	for id, accepted := range allowed {
		switch d := a.disks[id]; {
		case d == nil:
		case accepted:
			d.written[host]++
		default:
			d.refused[host]++
		}
	}
}

// writeTo writes once, and returns a description of what was wrong, or "".
func writeTo(target, host string) string {
	lock := filepath.Join(target, "lock")
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		other, _ := os.ReadFile(lock)
		return fmt.Sprintf("%s writes while %s does", host, other)
	}
	if err != nil {
		// The volume is not mounted any more.
		return ""
	}
	_, _ = f.WriteString(host)
	_ = f.Close()
	if err := os.Remove(lock); err != nil {
		return fmt.Sprintf("the lock of %s was removed by another host: %v", host, err)
	}
	return ""
}

// service is the array's driver on one host.
type service struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer
	*Array
	host, socket string
}

// Socket returns the path of the driver's socket on a host whose node agent has this root directory.
func Socket(root string) string { return filepath.Join(root, "plugins", Driver, "csi.sock") }

// Serve runs the driver of a host whose node agent has this root directory.
func (a *Array) Serve(t *testing.T, host, root string) {
	t.Helper()
	s := &service{Array: a, host: host, socket: Socket(root)}
	registration := filepath.Join(root, "plugins_registry", Driver+"-reg.sock")
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
		Type: registerapi.CSIPlugin, Name: Driver, Endpoint: s.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (s *service) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (s *service) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: Driver, VendorVersion: "1"}, nil
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

func (s *service) CreateVolume(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	id := r.GetName()
	err := s.call(ctx, s.host, "create", func() error {
		if s.disks[id] != nil {
			return nil
		}
		s.disks[id] = &disk{
			publishedTo: map[string]bool{}, targets: map[string]string{}, written: map[string]int{}, refused: map[string]int{},
		}
		return os.MkdirAll(s.path(id), 0o700)
	})
	made := &csipb.Volume{VolumeId: id, CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}
	return &csipb.CreateVolumeResponse{Volume: made}, err
}

func (s *service) DeleteVolume(ctx context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	id := r.GetVolumeId()
	return &csipb.DeleteVolumeResponse{}, s.call(ctx, s.host, "delete", func() error {
		if d := s.disks[id]; d != nil && len(d.publishedTo)+len(d.targets) > 0 {
			s.violation("volume %s is deleted while it is published to %v and mounted at %v", id, d.publishedTo, d.targets)
		}
		delete(s.disks, id)
		return os.RemoveAll(s.path(id))
	})
}

// ControllerPublishVolume allows a host to write. It is a violation if another host may write: all volumes
// are for one host at a time.
func (s *service) ControllerPublishVolume(
	ctx context.Context, r *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	return &csipb.ControllerPublishVolumeResponse{}, s.call(ctx, s.host, "publish", func() error {
		d := s.disks[r.GetVolumeId()]
		if d == nil {
			return status.Error(codes.NotFound, "no such volume")
		}
		if len(d.publishedTo) > 0 && !d.publishedTo[r.GetNodeId()] {
			s.violation("volume %s is to be published to %s while it is published to %v", r.GetVolumeId(), r.GetNodeId(),
				d.publishedTo)
			return status.Error(codes.FailedPrecondition, "the volume is published to another host")
		}
		d.publishedTo[r.GetNodeId()] = true
		return nil
	})
}

// ControllerUnpublishVolume refuses a host's writes from now on, even if the volume is mounted there.
func (s *service) ControllerUnpublishVolume(
	ctx context.Context, r *csipb.ControllerUnpublishVolumeRequest,
) (*csipb.ControllerUnpublishVolumeResponse, error) {
	return &csipb.ControllerUnpublishVolumeResponse{}, s.call(ctx, s.host, "unpublish", func() error {
		if d := s.disks[r.GetVolumeId()]; d != nil {
			delete(d.publishedTo, r.GetNodeId())
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
	if d == nil || !d.publishedTo[s.host] {
		s.violation("volume %s is mounted at %s, but not published to it", r.GetVolumeId(), s.host)
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
