package csi

import (
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits of the CSI specification for fields that do not say otherwise.
const (
	maxString = 128
	maxNodeID = 256
	maxMap    = 4 << 10
)

// checkAnswer refuses an answer that breaks the specification. The call has
// had its effect nevertheless, so the outcome is unknown: DataLoss would be
// final, Unknown is not.
func checkAnswer(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
		return err
	}
	if problem := answerProblem(reply); problem != "" {
		return status.Error(codes.Unknown, "the driver's answer breaks the CSI specification: "+problem)
	}
	return nil
}

func answerProblem(reply any) string {
	switch r := reply.(type) {
	case *csipb.CreateVolumeResponse:
		return volumeProblem(r.GetVolume())
	case *csipb.ControllerPublishVolumeResponse:
		return mapProblem("publish_context", r.GetPublishContext())
	case *csipb.ControllerExpandVolumeResponse:
		if r.GetCapacityBytes() < 0 {
			return "negative capacity"
		}
	case *csipb.NodeGetInfoResponse:
		switch id := r.GetNodeId(); {
		case id == "":
			return "no node id"
		case len(id) > maxNodeID:
			return fmt.Sprintf("node id of %d bytes", len(id))
		}
		return mapProblem("topology", r.GetAccessibleTopology().GetSegments())
	}
	return ""
}

func volumeProblem(v *csipb.Volume) string {
	switch {
	case v.GetVolumeId() == "":
		return "no volume id"
	case len(v.GetVolumeId()) > maxString:
		return fmt.Sprintf("volume id of %d bytes", len(v.GetVolumeId()))
	case v.GetCapacityBytes() < 0:
		return "negative capacity"
	}
	for _, t := range v.GetAccessibleTopology() {
		if p := mapProblem("topology", t.GetSegments()); p != "" {
			return p
		}
	}
	return mapProblem("volume_context", v.GetVolumeContext())
}

func mapProblem(name string, m map[string]string) string {
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
	}
	if size > maxMap {
		return fmt.Sprintf("%s of %d bytes", name, size)
	}
	return ""
}
