package node

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// fakeDriver is a CSI driver that mounts nothing and records its calls.
type fakeDriver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer

	name, registerAs string
	topology         map[string]string
	// promises says CONTROLLER_SERVICE; nodeOnly has the registration say that the controller is elsewhere.
	promises, nodeOnly bool
	// files is what its sockets are called; the driver's name if it is empty. id is its name of the node, with the same
	// default. noStage says that it does not stage.
	files, id string
	noStage   bool
	dir       string
	// hook, when set, is asked before each call of the node service.
	hook func(ctx context.Context, call string) error

	mu    sync.Mutex
	calls []string
	// requests are those of NodePublishVolume.
	requests []*csipb.NodePublishVolumeRequest
	// expanded are those of NodeExpandVolume that have succeeded.
	expanded []*csipb.NodeExpandVolumeRequest
	// staged and shown are what was done and not undone: volumes, and volumes
	// with a target.
	staged, published map[string]bool
	// maxVolumes is how many volumes the node takes; usage and ailments are what it
	// says of each volume; tells says that it does so.
	maxVolumes int64
	usage      []*csipb.VolumeUsage
	problems   []*csipb.VolumeHealth_VolumeHealthEntry
	hasHealth  bool
	// older is what a driver of CSI 1.12 answers to NodeGetVolumeStats, as JSON; empty for a later one.
	older string
	// storage is what it says of its storage; noHealth is the error of NodeGetVolumeHealth.
	storage  []*csipb.NodeGetStorageHealthResponse_StorageBackendHealth
	noHealth error
	// mount, when set, mounts something at a target, mountStage at a staging
	// path.
	mount, mountStage func(path string) error
	// grown is the size that it says a volume has after an expansion; 0 is that it does not say.
	grown atomic.Int64
	// flags are the mount flags that staged volumes have; mixed are those of calls for a volume that has others.
	flags    map[string]string
	mixed    []string
	statuses []*registerapi.RegistrationStatus
	servers  []*grpc.Server
}

func newFakeDriver(name, root string) *fakeDriver {
	return &fakeDriver{
		name: name, registerAs: name, dir: root, topology: map[string]string{"topology.example/zone": "z1"},
		staged: map[string]bool{}, published: map[string]bool{}, flags: map[string]string{}, maxVolumes: 7,
	}
}

func (d *fakeDriver) endpoint() string {
	return filepath.Join(d.dir, "plugins", cmp.Or(d.files, d.name)+".sock")
}

func (d *fakeDriver) socket() string {
	return filepath.Join(d.dir, "plugins_registry", cmp.Or(d.files, d.name)+"-reg.sock")
}

// start serves both sockets until stop.
func (d *fakeDriver) start(t *testing.T) {
	t.Helper()
	for path, register := range map[string]func(*grpc.Server){
		d.endpoint(): func(s *grpc.Server) {
			csipb.RegisterIdentityServer(s, d)
			csipb.RegisterControllerServer(s, d)
			csipb.RegisterNodeServer(s, d)
		},
		d.socket(): func(s *grpc.Server) { registerapi.RegisterRegistrationServer(s, d) },
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		register(s)
		go func() { _ = s.Serve(l) }()
		d.servers = append(d.servers, s)
	}
	t.Cleanup(d.stop)
}

// stop ends the driver like a process that removes its sockets.
func (d *fakeDriver) stop() {
	for _, s := range d.servers {
		s.Stop()
	}
	d.servers = nil
}

func (d *fakeDriver) call(ctx context.Context, what string) error {
	d.mu.Lock()
	d.calls = append(d.calls, what)
	hook := d.hook
	d.mu.Unlock()
	if hook != nil {
		return hook(ctx, what)
	}
	return nil
}

func (d *fakeDriver) setHook(h func(context.Context, string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = h
}

func (d *fakeDriver) history() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.calls, " ")
}

func (d *fakeDriver) answers() []*registerapi.RegistrationStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*registerapi.RegistrationStatus(nil), d.statuses...)
}

func (d *fakeDriver) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if d.nodeOnly {
		if err := grpc.SetHeader(ctx, metadata.Pairs(csi.HeaderNodeOnly, "true")); err != nil {
			return nil, err
		}
	}
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: d.registerAs, Endpoint: d.endpoint(), SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (d *fakeDriver) NotifyRegistrationStatus(
	_ context.Context, s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statuses = append(d.statuses, s)
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (d *fakeDriver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *fakeDriver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{}, nil
}

func (d *fakeDriver) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	r := &csipb.GetPluginCapabilitiesResponse{}
	if d.promises {
		r.Capabilities = []*csipb.PluginCapability{{Type: &csipb.PluginCapability_Service_{
			Service: &csipb.PluginCapability_Service{Type: csipb.PluginCapability_Service_CONTROLLER_SERVICE},
		}}}
	}
	return r, nil
}

func (d *fakeDriver) ControllerGetCapabilities(
	ctx context.Context, _ *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	return &csipb.ControllerGetCapabilitiesResponse{}, d.call(ctx, "controller")
}

func (d *fakeDriver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	r := &csipb.NodeGetCapabilitiesResponse{}
	can := []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_EXPAND_VOLUME}
	if !d.noStage {
		can = append(can, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	if d.hasHealth {
		can = append(can, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
			csipb.NodeServiceCapability_RPC_GET_STORAGE_HEALTH)
	}
	if d.older != "" {
		const volumeCondition = 4
		can = append(can, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, volumeCondition)
	}
	for _, c := range can {
		r.Capabilities = append(r.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return r, nil
}

func (d *fakeDriver) NodeGetInfo(ctx context.Context, _ *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	if err := d.call(ctx, "info"); err != nil {
		return nil, err
	}
	return &csipb.NodeGetInfoResponse{
		NodeId: "id-" + cmp.Or(d.id, d.name), MaxVolumesPerNode: d.limit(),
		AccessibleTopology: &csipb.Topology{Segments: d.topology},
	}, nil
}

// afterwards is an error that is answered when the work is done.
type afterwards struct{ error }

// perform asks the hook how a call ends, and does the work or not.
func (d *fakeDriver) perform(ctx context.Context, what string, work func() error) error {
	err := d.call(ctx, what)
	late, after := err.(afterwards) //nolint:errorlint // nothing wraps what a hook returns
	if err != nil && !after {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := work(); err != nil {
		return err
	}
	if after {
		return late.error
	}
	return nil
}

// labelled compares the mount flags of a call with those that the volume is staged with.
func (d *fakeDriver) labelled(id string, c *csipb.VolumeCapability) error {
	flags := strings.Join(c.GetMount().GetMountFlags(), ",")
	if d.staged[id] && d.flags[id] != flags {
		d.mixed = append(d.mixed, flags)
		return status.Errorf(codes.AlreadyExists, "it has the mount flags %s", d.flags[id])
	}
	d.flags[id] = flags
	return nil
}

// leftover returns what was done and not undone.
func (d *fakeDriver) leftover() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(slices.Concat(slices.Sorted(maps.Keys(d.staged)), slices.Sorted(maps.Keys(d.published))), " ")
}

func (d *fakeDriver) NodeStageVolume(
	ctx context.Context, r *csipb.NodeStageVolumeRequest,
) (*csipb.NodeStageVolumeResponse, error) {
	return &csipb.NodeStageVolumeResponse{},
		d.perform(ctx, "stage:"+r.VolumeId+":"+r.PublishContext["device"]+":"+r.Secrets["key"], func() error {
			if err := d.labelled(r.VolumeId, r.VolumeCapability); err != nil {
				return err
			}
			if d.mountStage != nil && !d.staged[r.VolumeId] {
				if err := d.mountStage(r.StagingTargetPath); err != nil {
					return status.Error(codes.Internal, err.Error())
				}
			}
			d.staged[r.VolumeId] = true
			return nil
		})
}

func (d *fakeDriver) NodeUnstageVolume(
	ctx context.Context, r *csipb.NodeUnstageVolumeRequest,
) (*csipb.NodeUnstageVolumeResponse, error) {
	return &csipb.NodeUnstageVolumeResponse{}, d.perform(ctx, "unstage:"+r.VolumeId, func() error {
		for at := range d.published {
			if strings.HasPrefix(at, r.VolumeId+" ") {
				return status.Error(codes.FailedPrecondition, "it is still at "+at)
			}
		}
		if d.mountStage != nil {
			_ = unix.Unmount(r.StagingTargetPath, unix.UMOUNT_NOFOLLOW)
		}
		delete(d.staged, r.VolumeId)
		return nil
	})
}

func (d *fakeDriver) publishRequests() []*csipb.NodePublishVolumeRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.requests)
}

func (d *fakeDriver) NodePublishVolume(
	ctx context.Context, r *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	d.requests = append(d.requests, r)
	d.mu.Unlock()
	return &csipb.NodePublishVolumeResponse{}, d.perform(ctx, "publish:"+r.VolumeId, func() error {
		at := r.VolumeId + " " + r.TargetPath
		if r.StagingTargetPath != "" && !d.staged[r.VolumeId] {
			return status.Error(codes.FailedPrecondition, "it is not staged")
		}
		if err := d.labelled(r.VolumeId, r.VolumeCapability); err != nil {
			return err
		}
		if d.mount != nil && !d.published[at] {
			if err := d.mount(r.TargetPath); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
		}
		d.published[at] = true
		return nil
	})
}

func (d *fakeDriver) NodeUnpublishVolume(
	ctx context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	return &csipb.NodeUnpublishVolumeResponse{}, d.perform(ctx, "unpublish:"+r.VolumeId, func() error {
		if d.mount != nil {
			// As drivers do, it looks at what it is to take away.
			if _, err := os.Stat(r.TargetPath); err != nil && !os.IsNotExist(err) {
				return status.Error(codes.Internal, err.Error())
			}
			_ = unix.Unmount(r.TargetPath, unix.UMOUNT_NOFOLLOW)
			_ = unix.Rmdir(r.TargetPath)
		}
		delete(d.published, r.VolumeId+" "+r.TargetPath)
		return nil
	})
}

func (d *fakeDriver) NodeExpandVolume(
	ctx context.Context, r *csipb.NodeExpandVolumeRequest,
) (*csipb.NodeExpandVolumeResponse, error) {
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: d.grown.Load()},
		d.perform(ctx, "expand:"+r.VolumeId, func() error {
			d.expanded = append(d.expanded, r)
			return nil
		})
}

func (d *fakeDriver) limit() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.maxVolumes
}

func (d *fakeDriver) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

func (d *fakeDriver) NodeGetVolumeStats(
	ctx context.Context, r *csipb.NodeGetVolumeStatsRequest,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	err := d.call(ctx, "stats:"+r.VolumeId)
	d.mu.Lock()
	defer d.mu.Unlock()
	answer := &csipb.NodeGetVolumeStatsResponse{Usage: d.usage}
	if d.older != "" {
		err = errors.Join(err, csitest.Older(answer, d.older))
	}
	return answer, err
}

func (d *fakeDriver) NodeGetVolumeHealth(
	ctx context.Context, r *csipb.NodeGetVolumeHealthRequest,
) (*csipb.NodeGetVolumeHealthResponse, error) {
	if err := d.call(ctx, "health:"+r.VolumeId+":"+r.VolumePublishPath); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csipb.NodeGetVolumeHealthResponse{
		VolumeHealth: &csipb.VolumeHealth{VolumeId: r.VolumeId, HealthStatuses: d.problems},
	}, d.noHealth
}

func (d *fakeDriver) NodeGetStorageHealth(
	ctx context.Context, _ *csipb.NodeGetStorageHealthRequest,
) (*csipb.NodeGetStorageHealthResponse, error) {
	if err := d.call(ctx, "storage"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csipb.NodeGetStorageHealthResponse{BackendHealth: d.storage}, nil
}
