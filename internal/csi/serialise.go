package csi

import (
	"context"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// serialise makes one call at a time for each volume, as CSI requires. A call that times out while waiting fails with
// Aborted, CSI's code for it, whose outcome is unknown, because the call in flight may still take effect.
func serialise(t *VolumeLocks) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			key := volumeOf(req)
			if key == "" {
				return next(ctx, method, req, reply, opts...)
			}
			if err := t.lock(ctx, key); err != nil {
				return refuse(codes.Aborted, ErrBusy, "")
			}
			defer t.unlock(key)
			return next(ctx, method, req, reply, opts...)
		}
	}
}

// volumeOf returns the key of the volume, or of the group of snapshots, that a request is about. The prefixes
// distinguish names from ids.
func volumeOf(req any) string {
	if r, ok := req.(*csipb.CreateVolumeRequest); ok {
		return "name " + r.GetName()
	}
	if id := idOf(req); id != "" {
		return "id " + id
	}
	// A group has its own calls, which CSI requires to be made one at a time, too.
	if r, ok := req.(*csipb.CreateVolumeGroupSnapshotRequest); ok {
		return "groupname " + r.GetName()
	}
	if r, ok := req.(interface{ GetGroupSnapshotId() string }); ok && r.GetGroupSnapshotId() != "" {
		return "groupid " + r.GetGroupSnapshotId()
	}
	return ""
}

// VolumeLocks serializes the calls for each volume. Drivers share it if one of them replaces the
// other. It is safe for concurrent use.
type VolumeLocks struct {
	mu sync.Mutex
	// busy holds the keys of volumes with a call in flight. Its channel is closed at the end of the
	// call.
	busy map[string]chan struct{}
}

// NewVolumeLocks returns VolumeLocks with no call in flight.
func NewVolumeLocks() *VolumeLocks { return &VolumeLocks{busy: map[string]chan struct{}{}} }

// Hold waits until no other caller holds a key, and returns a function that releases it.
func (t *VolumeLocks) Hold(key string) (release func()) {
	_ = t.lock(context.Background(), key) // it fails with its context only
	return func() { t.unlock(key) }
}

func (t *VolumeLocks) lock(ctx context.Context, key string) error {
	for {
		t.mu.Lock()
		wait, taken := t.busy[key]
		if !taken {
			t.busy[key] = make(chan struct{})
			t.mu.Unlock()
			return nil
		}
		t.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *VolumeLocks) unlock(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.busy[key])
	delete(t.busy, key)
}
