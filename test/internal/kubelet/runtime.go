package kubelet

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containers is a container runtime that runs nothing. It is safe for concurrent
// use.
type containers struct {
	cri.UnimplementedRuntimeServiceServer
	cri.UnimplementedImageServiceServer
	// dir is the place for images, and logs that for the output of containers.
	dir, logs string

	mu        sync.Mutex
	count     int
	sandboxes map[string]*cri.PodSandboxStatus
	all       map[string]*container
}

type container struct {
	sandbox string
	status  *cri.ContainerStatus
}

func newContainers(dir, logs string) *containers {
	return &containers{dir: dir, logs: logs, sandboxes: map[string]*cri.PodSandboxStatus{}, all: map[string]*container{}}
}

// newID returns what no sandbox or container has; c.mu is held.
func (c *containers) newID() string {
	c.count++
	return fmt.Sprintf("%064x", c.count)
}

// Version returns the name of this runtime.
func (c *containers) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{Version: "0.1.0", RuntimeName: "none", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"},
		nil
}

// Status reports that the runtime is healthy.
func (c *containers) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: true}, {Type: cri.NetworkReady, Status: true},
	}}}, nil
}

// RuntimeConfig returns the only setting that kubelets query.
func (c *containers) RuntimeConfig(context.Context, *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse, error) {
	return &cri.RuntimeConfigResponse{Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: cri.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig does nothing.
func (c *containers) UpdateRuntimeConfig(
	context.Context, *cri.UpdateRuntimeConfigRequest,
) (*cri.UpdateRuntimeConfigResponse, error) {
	return &cri.UpdateRuntimeConfigResponse{}, nil
}

// RunPodSandbox notes a sandbox.
func (c *containers) RunPodSandbox(_ context.Context, r *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, config := c.newID(), r.GetConfig()
	c.sandboxes[id] = &cri.PodSandboxStatus{
		Id: id, Metadata: config.GetMetadata(), State: cri.PodSandboxState_SANDBOX_READY, CreatedAt: time.Now().UnixNano(),
		Network: &cri.PodSandboxNetworkStatus{Ip: "192.0.2.1"}, Labels: config.GetLabels(),
		Annotations: config.GetAnnotations(),
		Linux: &cri.LinuxPodSandboxStatus{
			Namespaces: &cri.Namespace{Options: config.GetLinux().GetSecurityContext().GetNamespaceOptions()},
		},
	}
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// StopPodSandbox ends a sandbox and what runs in it.
func (c *containers) StopPodSandbox(
	_ context.Context, r *cri.StopPodSandboxRequest,
) (*cri.StopPodSandboxResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.sandboxes[r.GetPodSandboxId()]; s != nil {
		s.State = cri.PodSandboxState_SANDBOX_NOTREADY
	}
	for _, one := range c.all {
		if one.sandbox == r.GetPodSandboxId() {
			one.end()
		}
	}
	return &cri.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox forgets a sandbox and what was in it.
func (c *containers) RemovePodSandbox(
	_ context.Context, r *cri.RemovePodSandboxRequest,
) (*cri.RemovePodSandboxResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sandboxes, r.GetPodSandboxId())
	maps.DeleteFunc(c.all, func(_ string, one *container) bool { return one.sandbox == r.GetPodSandboxId() })
	return &cri.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus returns the recorded status of a sandbox.
func (c *containers) PodSandboxStatus(
	_ context.Context, r *cri.PodSandboxStatusRequest,
) (*cri.PodSandboxStatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sandboxes[r.GetPodSandboxId()]
	if s == nil {
		return nil, status.Error(codes.NotFound, "there is no such sandbox")
	}
	return &cri.PodSandboxStatusResponse{Status: clone(s)}, nil
}

// clone returns a copy whose state no longer changes; the objects that it points to never do.
func clone(s *cri.PodSandboxStatus) *cri.PodSandboxStatus {
	return &cri.PodSandboxStatus{
		Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Network: s.Network, Linux: s.Linux,
		Labels: s.Labels, Annotations: s.Annotations,
	}
}

// ListPodSandbox lists the sandboxes that match a filter.
func (c *containers) ListPodSandbox(
	_ context.Context, r *cri.ListPodSandboxRequest,
) (*cri.ListPodSandboxResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, f := &cri.ListPodSandboxResponse{}, r.GetFilter()
	for _, id := range slices.Sorted(maps.Keys(c.sandboxes)) {
		s := c.sandboxes[id]
		if strings.HasPrefix(id, f.GetId()) && (f.GetState() == nil || f.GetState().GetState() == s.State) &&
			selects(f.GetLabelSelector(), s.Labels) {
			out.Items = append(out.Items, &cri.PodSandbox{
				Id: id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations,
			})
		}
	}
	return out, nil
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// CreateContainer notes a container.
func (c *containers) CreateContainer(
	_ context.Context, r *cri.CreateContainerRequest,
) (*cri.CreateContainerResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, config := c.newID(), r.GetConfig()
	c.all[id] = &container{sandbox: r.GetPodSandboxId(), status: &cri.ContainerStatus{
		Id: id, Metadata: config.GetMetadata(), State: cri.ContainerState_CONTAINER_CREATED, CreatedAt: time.Now().UnixNano(),
		Image: config.GetImage(), ImageRef: imageID(config.GetImage().GetImage()),
		ImageId: imageID(config.GetImage().GetImage()),
		Labels:  config.GetLabels(), Annotations: config.GetAnnotations(), Mounts: config.GetMounts(),
		// A kubelet removes every file whose name begins with this path: if it is empty, everything in its working directory.
		LogPath: filepath.Join(c.logs, id+".log"),
	}}
	return &cri.CreateContainerResponse{ContainerId: id}, nil
}

// find returns a container; c.mu is held.
func (c *containers) find(id string) (*container, error) {
	one := c.all[id]
	if one == nil {
		return nil, status.Error(codes.NotFound, "there is no such container")
	}
	return one, nil
}

// StartContainer records that a container runs.
func (c *containers) StartContainer(
	_ context.Context, r *cri.StartContainerRequest,
) (*cri.StartContainerResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one, err := c.find(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	one.status.State, one.status.StartedAt = cri.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	return &cri.StartContainerResponse{}, nil
}

func (one *container) end() {
	if s := one.status; s.State != cri.ContainerState_CONTAINER_EXITED {
		s.State, s.FinishedAt, s.Reason = cri.ContainerState_CONTAINER_EXITED, time.Now().UnixNano(), "Completed"
	}
}

// StopContainer records that a container has ended with success.
func (c *containers) StopContainer(_ context.Context, r *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[r.GetContainerId()]; one != nil {
		one.end()
	}
	return &cri.StopContainerResponse{}, nil
}

// RemoveContainer forgets a container.
func (c *containers) RemoveContainer(
	_ context.Context, r *cri.RemoveContainerRequest,
) (*cri.RemoveContainerResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, r.GetContainerId())
	return &cri.RemoveContainerResponse{}, nil
}

// ListContainers lists the containers that match a filter.
func (c *containers) ListContainers(
	_ context.Context, r *cri.ListContainersRequest,
) (*cri.ListContainersResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, f := &cri.ListContainersResponse{}, r.GetFilter()
	for _, id := range slices.Sorted(maps.Keys(c.all)) {
		one := c.all[id]
		s := one.status
		if strings.HasPrefix(id, f.GetId()) && strings.HasPrefix(one.sandbox, f.GetPodSandboxId()) &&
			(f.GetState() == nil || f.GetState().GetState() == s.State) && selects(f.GetLabelSelector(), s.Labels) {
			out.Containers = append(out.Containers, &cri.Container{
				Id: id, PodSandboxId: one.sandbox, Metadata: s.Metadata, Image: s.Image, ImageRef: s.ImageRef, ImageId: s.ImageId,
				State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations,
			})
		}
	}
	return out, nil
}

// ContainerStatus returns the recorded status of a container.
func (c *containers) ContainerStatus(
	_ context.Context, r *cri.ContainerStatusRequest,
) (*cri.ContainerStatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one, err := c.find(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	s := one.status
	return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{
		Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, StartedAt: s.StartedAt,
		FinishedAt: s.FinishedAt, Reason: s.Reason,
		Image: s.Image, ImageRef: s.ImageRef, ImageId: s.ImageId, Labels: s.Labels, Annotations: s.Annotations,
		Mounts: s.Mounts, LogPath: s.LogPath,
	}}, nil
}

// ListContainerStats returns nothing.
func (c *containers) ListContainerStats(
	context.Context, *cri.ListContainerStatsRequest,
) (*cri.ListContainerStatsResponse, error) {
	return &cri.ListContainerStatsResponse{}, nil
}

// ListPodSandboxStats returns nothing.
func (c *containers) ListPodSandboxStats(
	context.Context, *cri.ListPodSandboxStatsRequest,
) (*cri.ListPodSandboxStatsResponse, error) {
	return &cri.ListPodSandboxStatsResponse{}, nil
}

func imageID(name string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name))) }

// ImageStatus says that every image is here.
func (c *containers) ImageStatus(_ context.Context, r *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	name := r.GetImage().GetImage()
	return &cri.ImageStatusResponse{
		Image: &cri.Image{Id: imageID(name), RepoTags: []string{name}, Size: 1, Spec: &cri.ImageSpec{Image: name}},
	}, nil
}

// PullImage says that it has the image.
func (c *containers) PullImage(_ context.Context, r *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	return &cri.PullImageResponse{ImageRef: imageID(r.GetImage().GetImage())}, nil
}

// ListImages returns no images: nothing may be deleted.
func (c *containers) ListImages(context.Context, *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	return &cri.ListImagesResponse{}, nil
}

// ImageFsInfo reports that images take no space.
func (c *containers) ImageFsInfo(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	none := []*cri.FilesystemUsage{{
		Timestamp: time.Now().UnixNano(), FsId: &cri.FilesystemIdentifier{Mountpoint: c.dir},
		UsedBytes: &cri.UInt64Value{}, InodesUsed: &cri.UInt64Value{},
	}}
	return &cri.ImageFsInfoResponse{ImageFilesystems: none, ContainerFilesystems: none}, nil
}
