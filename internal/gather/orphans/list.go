package orphans

import (
	"context"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/orphans"
	"volplane.dev/volplane/internal/decide/topology"
)

// Limits of what is read from a driver.
const (
	dialTime = 10 * time.Second
	listTime = 2 * time.Minute
	pageSize = 500
	maxPages = 4096
	// maxVolumes and maxBytes are the limits of a whole list.
	maxVolumes = 200_000
	maxBytes   = 256 << 20
)

// ErrEndless says that a driver's list exceeds the limits.
var ErrEndless = errors.New("its list of volumes does not end")

// ErrCannotList says that a driver lacks the capability LIST_VOLUMES.
var ErrCannotList = errors.New("it cannot list its volumes")

// ErrNoDriver says that no driver with the name answers.
var ErrNoDriver = errors.New("it does not answer here")

// dial connects to a driver that can list its volumes.
func dial(ctx context.Context, socket string) (*csi.Driver, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	d, err := csi.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	if !d.Controller.ListVolumes {
		_ = d.Close()
		return nil, fmt.Errorf("driver %s: %w (LIST_VOLUMES)", d.Name, ErrCannotList)
	}
	return d, nil
}

// Socket returns the socket of a driver.
func (s *Search) Socket(ctx context.Context, sockets []string, name string) (string, error) {
	if len(sockets) == 1 {
		return sockets[0], nil
	}
	var others []error
	for _, socket := range sockets {
		d, err := dial(ctx, socket)
		if err != nil {
			others = append(others, err)
			continue
		}
		_ = d.Close()
		if d.Name == name {
			return socket, nil
		}
	}
	return "", errors.Join(append(others, fmt.Errorf("driver %s: %w", decide.Printable(name), ErrNoDriver))...)
}

// segmentOf returns the topology segment of the node on which a driver runs, if it has one.
func segmentOf(ctx context.Context, d *csi.Driver) topology.Segment {
	info, err := d.NodeInfo(ctx)
	if err != nil {
		// A driver that runs beside the controllers only has no node service.
		return nil
	}
	return info.Topology
}

// list reads all volumes of a driver.
func list(ctx context.Context, d *csi.Driver) ([]decide.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	var out []decide.Entry
	token, size, seen := "", 0, map[string]bool{}
	for range maxPages {
		r, err := d.ControllerClient().ListVolumes(ctx, &csipb.ListVolumesRequest{MaxEntries: pageSize, StartingToken: token})
		if err != nil {
			return nil, fmt.Errorf("list the volumes of driver %s: %s", d.Name, csi.Describe(err))
		}
		size += proto.Size(r)
		for _, e := range r.GetEntries() {
			out = append(out, entryOf(e))
		}
		token = r.GetNextToken()
		if token == "" {
			return out, nil
		}
		if seen[token] || len(out) > maxVolumes || size > maxBytes {
			break
		}
		seen[token] = true
	}
	return nil, fmt.Errorf("driver %s: %w: after %d volumes", d.Name, ErrEndless, len(out))
}

func entryOf(e *csipb.ListVolumesResponse_Entry) decide.Entry {
	v := e.GetVolume()
	return decide.Entry{
		Handle: v.GetVolumeId(), Bytes: v.GetCapacityBytes(), Context: v.GetVolumeContext(),
		Nodes:    e.GetStatus().GetPublishedNodeIds(),
		Segments: csi.Segments[topology.Segment](v.GetAccessibleTopology()),
	}
}
