package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/csi"
)

func healthChecks() []check {
	const next = "answer with what is wrong and nothing else: a status of CSI and a CamelCase reason, each pair once"
	return []check{
		{
			"volume-health", func(x *exam) bool { return x.creates() && x.promises().GetVolumeHealth },
			shared((*exam).checkVolumeHealth, created), next,
		},
		{
			"list-health", func(x *exam) bool { return x.creates() && x.promises().ListVolumeHealth },
			shared((*exam).checkListHealth, created),
			"list only volumes that are not well, over all pages; answer ABORTED to an unknown token",
		},
		{
			"node-health", func(x *exam) bool { return x.mounts() && x.node.d.Node.VolumeHealth },
			shared((*exam).checkNodeHealth, published), next,
		},
		{
			"storage-health", func(x *exam) bool { return x.node.d.Node.StorageHealth }, (*exam).checkStorageHealth, next,
		},
		{
			"volume-condition", (*exam).hasConditions, shared((*exam).checkCondition, published),
			"give each volume its volume_condition, which CSI has up to 1.12, or do not promise VOLUME_CONDITION",
		},
	}
}

// problem is one thing that a driver says is wrong.
type problem struct {
	status, reason string
	// of says what else tells problems apart.
	of string
}

// problemsVerdict judges what a driver says is wrong with something that is new and idle.
func problemsVerdict(what string, all []problem) verdict {
	seen := map[problem]bool{}
	for _, p := range all {
		switch {
		case strings.HasPrefix(p.status, "UNKNOWN"):
			return fail("the status of a problem is %s", p.status)
		case !regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`).MatchString(p.reason):
			return fail("the reason %.80q is not CamelCase", p.reason)
		case seen[p]:
			return fail("%s %s is reported twice", p.status, p.reason)
		}
		seen[p] = true
	}
	if len(all) > 0 {
		return warn("%s is %s (%s), and nothing was done to it", what, all[0].status, all[0].reason)
	}
	return pass("%s is well", what)
}

// volumeVerdict judges an answer about one volume.
func volumeVerdict(id, what string, h *csipb.VolumeHealth) verdict {
	if h.GetVolumeId() != id {
		return fail("the volume_id of the answer is %.128q, that of the request was %.128q", h.GetVolumeId(), id)
	}
	var all []problem
	for _, e := range h.GetHealthStatuses() {
		all = append(all, problem{status: e.GetStatus().String(), reason: e.GetReason()})
	}
	return problemsVerdict(what, all)
}

func (x *exam) checkVolumeHealth(ctx context.Context, v *vol) verdict {
	r, err := do(ctx, x, x.control().ControllerGetVolumeHealth,
		&csipb.ControllerGetVolumeHealthRequest{VolumeId: v.id(), Secrets: x.Secrets})
	if err != nil {
		return fail("ControllerGetVolumeHealth: %s", csi.Describe(err))
	}
	return volumeVerdict(v.id(), "the volume", r.GetVolumeHealth())
}

// checkListHealth reads the list whole and in pages of one.
func (x *exam) checkListHealth(ctx context.Context, v *vol) verdict {
	var ours *csipb.VolumeHealth
	for _, most := range []int32{0, 1} {
		err := x.healthPages(ctx, most, func(h *csipb.VolumeHealth) error {
			if h.GetVolumeId() == v.id() {
				ours = h
			}
			if h.GetVolumeId() == "" || len(h.GetHealthStatuses()) == 0 {
				return fmt.Errorf("volume %.128q is in the list, and nothing is wrong with it", h.GetVolumeId())
			}
			return nil
		})
		if err != nil {
			return fail("%v", err)
		}
	}
	_, err := do(ctx, x, x.control().ControllerListVolumeHealth,
		&csipb.ControllerListVolumeHealthRequest{StartingToken: "volplane-doctor-no-such-token", Secrets: x.Secrets})
	if text := answered("ControllerListVolumeHealth from an unknown token", err, codes.Aborted); text != "" {
		return fail("%s", text)
	}
	if ours != nil {
		return volumeVerdict(v.id(), "the volume", ours)
	}
	return pass("the list ends, and the volume is not in it")
}

// healthPages calls visit for each entry of the list, until it returns an error.
func (x *exam) healthPages(ctx context.Context, most int32, visit func(*csipb.VolumeHealth) error) error {
	return eachEntry("ControllerListVolumeHealth", most, func(token string) ([]*csipb.VolumeHealth, string, error) {
		r, err := do(ctx, x, x.control().ControllerListVolumeHealth,
			&csipb.ControllerListVolumeHealthRequest{MaxEntries: most, StartingToken: token, Secrets: x.Secrets})
		return r.GetEntries(), r.GetNextToken(), err
	}, visit)
}

func (x *exam) checkNodeHealth(ctx context.Context, v *vol) verdict {
	r := &csipb.NodeGetVolumeHealthRequest{VolumeId: v.id(), VolumePublishPath: v.targets[0]}
	if x.node.d.Node.StageUnstage {
		r.StagingTargetPath = v.staging()
	}
	answer, err := do(ctx, x, x.serve().NodeGetVolumeHealth, r)
	if err != nil {
		return fail("NodeGetVolumeHealth: %s", csi.Describe(err))
	}
	return volumeVerdict(v.id(), "the mounted volume", answer.GetVolumeHealth())
}

func (x *exam) checkStorageHealth(ctx context.Context) verdict {
	r, err := do(ctx, x, x.serve().NodeGetStorageHealth, &csipb.NodeGetStorageHealthRequest{Secrets: x.Secrets})
	if err != nil {
		return fail("NodeGetStorageHealth: %s", csi.Describe(err))
	}
	var all []problem
	for _, e := range r.GetBackendHealth() {
		of, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.GetVolumeCapability())
		if err != nil {
			return skipped(err)
		}
		all = append(all, problem{e.GetStatus().String(), e.GetReason(), string(of)})
	}
	return problemsVerdict("the storage", all)
}

// hasConditions says that the driver promises what CSI had before its calls for health.
func (x *exam) hasConditions() bool {
	return x.mounts() && (x.promises().VolumeCondition || x.node.d.Node.VolumeCondition)
}

// checkCondition looks for the condition in each answer that must have it.
func (x *exam) checkCondition(ctx context.Context, v *vol) verdict {
	answers, err := x.conditionsOf(ctx, v)
	switch {
	case err != nil:
		return skipped(err)
	case len(answers) == 0:
		return fail("VOLUME_CONDITION is promised, and no call that is promised beside it has a condition")
	}
	for call, m := range answers {
		problems, reported := csi.ConditionOf(m)
		if !reported {
			return fail("%s answers without a volume_condition that can be read", call)
		}
		if len(problems) > 0 {
			return warn("%s says that the volume is abnormal, and nothing was done to it: %.200q", call,
				problems[0].GetMessage())
		}
	}
	return pass("the condition is in %d of the answers that may have it", len(answers))
}

// conditionsOf returns the parts of answers that must have the condition of a volume, by their calls.
func (x *exam) conditionsOf(ctx context.Context, v *vol) (map[string]proto.Message, error) {
	out, p, node := map[string]proto.Message{}, x.promises(), x.node.d.Node
	if node.VolumeCondition && node.Stats {
		r, err := do(ctx, x, x.serve().NodeGetVolumeStats, &csipb.NodeGetVolumeStatsRequest{
			VolumeId: v.id(), VolumePath: v.targets[0], StagingTargetPath: v.staging(),
		})
		if err != nil {
			return nil, failure{"NodeGetVolumeStats", err}
		}
		out["NodeGetVolumeStats"] = r
	}
	if p.VolumeCondition && p.GetVolume {
		r, err := do(ctx, x, x.control().ControllerGetVolume, &csipb.ControllerGetVolumeRequest{VolumeId: v.id()})
		if err != nil {
			return nil, failure{"ControllerGetVolume", err}
		}
		out["ControllerGetVolume"] = r.GetStatus()
	}
	if p.VolumeCondition && p.ListVolumes {
		if err := x.pages(ctx, 0, func(e *csipb.ListVolumesResponse_Entry) {
			if e.GetVolume().GetVolumeId() == v.id() {
				out["ListVolumes"] = e.GetStatus()
			}
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}
