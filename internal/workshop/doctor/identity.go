package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

func identityChecks() []check {
	return []check{
		{"name", nil, (*exam).checkName, "answer GetPluginInfo with the same domain name in all processes, always"},
		{"version", nil, (*exam).checkVersion, "answer GetPluginInfo with a vendor_version"},
		{"probe", nil, (*exam).checkProbe, "answer Probe with OK, and with ready false while the driver cannot work yet"},
		{
			"controller-service", nil, (*exam).checkControllerService,
			"promise CONTROLLER_SERVICE where there is a controller; give its socket with --controller-socket",
		},
		{
			"promises", nil, (*exam).checkPromises,
			"implement what the capabilities say, or do not say it",
		},
		{
			"unpromised", nil, (*exam).checkUnpromised,
			"say what the driver can do in its capabilities; answer UNIMPLEMENTED to all other calls",
		},
		{
			"node-info", func(x *exam) bool { return x.node.d.Node != (csi.NodeCapabilities{}) || x.info.ID != "" },
			(*exam).checkNodeInfo,
			"answer with a node_id of 1 to 256 bytes that stays the same, and topology keys that Kubernetes takes as labels",
		},
	}
}

// checkName compares the names that the processes give; Dial has refused names that CSI does not allow.
func (x *exam) checkName(ctx context.Context) verdict {
	for _, p := range x.all() {
		for range 2 {
			r, err := do(ctx, x, p.d.IdentityClient().GetPluginInfo, &csipb.GetPluginInfoRequest{})
			switch {
			case err != nil:
				return fail("GetPluginInfo: %s", csi.Describe(err))
			case r.GetName() != x.node.d.Name:
				return fail("the driver calls itself %.80q and then %.80q", x.node.d.Name, r.GetName())
			}
		}
	}
	return pass("%s, always", x.node.d.Name)
}

func (x *exam) checkVersion(context.Context) verdict {
	if x.node.d.Version == "" {
		return fail("the vendor_version is empty")
	}
	return pass("%s", x.node.d.Version)
}

func (x *exam) checkProbe(ctx context.Context) verdict {
	for _, p := range x.all() {
		for range 2 {
			r, err := do(ctx, x, p.d.IdentityClient().Probe, &csipb.ProbeRequest{})
			if err != nil {
				return fail("Probe: %s", csi.Describe(err))
			}
			if r.GetReady() != nil && !r.GetReady().GetValue() {
				return fail("the driver was ready, and is not any more")
			}
		}
	}
	return pass("the driver is ready")
}

func (x *exam) checkControllerService(context.Context) verdict {
	switch {
	case x.controller == nil && x.plugin.ControllerService:
		return warn("CONTROLLER_SERVICE is promised, and the controller is not behind this socket: it must be another " +
			"process, and nothing that needs volumes was checked")
	case x.controller == nil:
		return warn("there is no controller: nothing that needs volumes was checked")
	case !x.controller.d.HasController:
		return fail("the controller service is not behind %s", x.controller.socket)
	case !x.plugin.ControllerService:
		return fail("there is a controller service, and CONTROLLER_SERVICE is not promised: callers do not look for it")
	case !x.creates():
		return warn("the driver does not create volumes (CREATE_DELETE_VOLUME): only what needs no volume was checked")
	}
	return pass("it is promised, and there")
}

func (x *exam) checkPromises(ctx context.Context) verdict {
	var problems []string
	for _, m := range x.methods(x.shared) {
		if m.promised && csi.Code(m.empty()(ctx)) == codes.Unimplemented {
			problems = append(problems, m.name()+" is promised, and UNIMPLEMENTED")
		}
	}
	if x.promises().ListVolumesPublishedNodes && !x.lists() {
		problems = append(problems, "LIST_VOLUMES_PUBLISHED_NODES is promised without LIST_VOLUMES")
	}
	return oneOf(problems, "what is promised is implemented")
}

// checkUnpromised only warns: callers do not make these calls.
func (x *exam) checkUnpromised(ctx context.Context) verdict {
	for _, m := range x.methods(x.shared) {
		if !m.promised && m.empty()(ctx) == nil {
			return warn("%s is not promised, and answers OK: callers do not use it", m.name())
		}
	}
	return pass("what is not promised is refused")
}

func (x *exam) checkNodeInfo(ctx context.Context) verdict {
	var infos []csi.NodeInfo
	for range 2 {
		info, err := x.node.d.NodeInfo(ctx)
		if err != nil {
			return fail("NodeGetInfo: %s", csi.Describe(err))
		}
		infos = append(infos, info)
	}
	return oneOf(nodeInfoProblems(infos[0], infos[1], x.plugin.AccessibilityConstraints),
		fmt.Sprintf("the node is %.256q", infos[0].ID))
}

// nodeInfoProblems judges two answers of NodeGetInfo.
func nodeInfoProblems(a, b csi.NodeInfo, hasTopology bool) []string {
	var problems []string
	switch {
	case a.ID != b.ID:
		problems = append(problems, fmt.Sprintf("the node_id is %.80q and then %.80q", a.ID, b.ID))
	case a.ID == "" || len(a.ID) > maxNodeID:
		problems = append(problems, fmt.Sprintf("the node_id has %d bytes", len(a.ID)))
	}
	if a.MaxVolumes < 0 {
		problems = append(problems, fmt.Sprintf("max_volumes_per_node is %d", a.MaxVolumes))
	}
	if hasTopology && len(a.Topology) == 0 {
		problems = append(problems, "VOLUME_ACCESSIBILITY_CONSTRAINTS is promised, and the node has no topology")
	}
	return append(problems, topologyProblems(a.Topology)...)
}

// topologyProblems returns what is wrong with a segment: its keys and values become labels.
func topologyProblems(segment map[string]string) []string {
	const name = `[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?`
	key := regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?` + name + `$`)
	value := regexp.MustCompile(`^(` + name + `)?$`)
	var problems []string
	for k, v := range segment {
		if !key.MatchString(k) {
			problems = append(problems, fmt.Sprintf("the topology key %.100q cannot be a label", k))
		}
		if !value.MatchString(v) {
			problems = append(problems, fmt.Sprintf("the topology value %.100q of %.100q cannot be a label", v, k))
		}
	}
	slices.Sort(problems)
	return problems
}
