package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/internal/workshop/finding"
)

// spoils replace calls by their names.
type spoils map[string]func(*call) (proto.Message, error)

// fault is what is wrong with a driver, and how it is found.
type fault struct {
	spoil spoils
	// blocks changes the answers of the snapshot metadata service.
	blocks func(*metadataAnswer)
	// begin is called before the driver is served.
	begin func(*proxy) error
	// check is the one that is there for the fault. The level of its finding is fail unless it is given. also are those
	// that cannot but find it, too.
	check string
	level finding.Level
	also  []string
	// alone says that other faults are not seen beside this one.
	alone bool
}

func faults() map[string]fault {
	all := map[string]fault{}
	for _, some := range []map[string]fault{
		identityFaults(), createFaults(), createMoreFaults(), deleteFaults(), listFaults(), attachFaults(), nodeFaults(),
		publishFaults(), unpublishFaults(), unstageFaults(), useFaults(), blockFaults(), statsFaults(), growFaults(),
		copyFaults(), healthFaults(), getFaults(), metadataFaults(), lifeFaults(), sayFaults(), onceFaults(), endFaults(),
		killedFaults(),
	} {
		maps.Copy(all, some)
	}
	return all
}

// fails returns a call that fails without an effect.
func fails(code codes.Code, message string) func(*call) (proto.Message, error) {
	return func(*call) (proto.Message, error) { return nil, status.Error(code, message) }
}

// on changes the answer of a call that succeeds.
func on[A proto.Message](change func(*call, A)) func(*call) (proto.Message, error) {
	return func(c *call) (proto.Message, error) {
		m, err := c.pass()
		if err == nil {
			change(c, m.(A))
		}
		return m, err
	}
}

// instead changes the error of a call that fails, or lets it succeed with an empty answer.
func instead(of codes.Code, code codes.Code) func(*call) (proto.Message, error) {
	return func(c *call) (proto.Message, error) {
		m, err := c.pass()
		if status.Code(err) != of {
			return m, err
		}
		if code == codes.OK {
			return m, nil
		}
		return nil, status.Error(code, "planted")
	}
}

// found returns the checks that are not passed, and those of them that fail.
func found(r Report) (all map[string]finding.Level, failed []string) {
	all = map[string]finding.Level{}
	for _, f := range r.Findings {
		if f.Level != finding.Pass {
			all[f.Check] = f.Level
		}
		if f.Level == finding.Fail {
			failed = append(failed, f.Check)
		}
	}
	return all, failed
}

// together returns the names of faults that are planted in one driver: each fault that spoils only what its own check
// finds is planted with others, if they spoil other calls and are found by other checks.
func together() [][]string {
	var groups [][]string
	all := faults()
	mayJoin := func(f fault, group []string) bool {
		for _, name := range group {
			g := all[name]
			if g.alone || g.begin != nil || len(g.also) > 0 || g.check == f.check {
				return false
			}
			for method := range f.spoil {
				if g.spoil[method] != nil {
					return false
				}
			}
		}
		return !f.alone && f.begin == nil && len(f.also) == 0
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		i := slices.IndexFunc(groups, func(group []string) bool { return mayJoin(all[name], group) })
		if i < 0 {
			groups = append(groups, []string{name})
		} else {
			groups[i] = append(groups[i], name)
		}
	}
	return groups
}

// expensive are the checks that start a driver many times, or make many filesystems.
func expensive() []string {
	return []string{
		"ten-at-once", "killed-create", "killed-stage", "killed-publish", "killed-unpublish", "killed-delete",
		"killed-mounts",
	}
}

// expectedOf returns the checks that find some faults.
func expectedOf(group []string) map[string]bool {
	expected := map[string]bool{}
	for _, name := range group {
		f := faults()[name]
		for _, check := range append(f.also, f.check) {
			expected[check] = true
		}
	}
	return expected
}

// madeFor returns the checks that are made of a driver with faults: the ones that are there for them, and a part of the
// others, without what takes the most time and has nothing to do with them. What is found by looking at all calls needs
// all others.
func madeFor(t *testing.T, group []string) []string {
	t.Helper()
	all, part, expected := Checks(), seeds.Part(t), expectedOf(group)
	var made []string
	for _, name := range group {
		made = append(made, faults()[name].check)
	}
	if slices.ContainsFunc(made, func(check string) bool { return !slices.Contains(all, check) }) {
		part = func(int) bool { return true }
	}
	for i, check := range all {
		if part(i) && (expected[check] || !slices.Contains(expensive(), check)) {
			made = append(made, check)
		}
	}
	return made
}

// TestFaults: each fault is found by the check that is there for it, and by no other one that need not find it.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, group := range together() {
		t.Run(strings.Join(group, ", "), func(t *testing.T) {
			t.Parallel()
			d := patient(t, strings.Join(group, ";"))
			if group[0] == "a call hangs" {
				d.Limit = 10 * time.Second
			}
			expected := expectedOf(group)
			current := filepath.Join(t.TempDir(), "check")
			d.Env = append(d.Env, envCheck+"="+current)
			d.Progress = func(check string) {
				if err := os.WriteFile(current, []byte(check), 0o600); err != nil {
					t.Error(err)
				}
			}
			d.Only = madeFor(t, group)
			r, err := examined(t, d)
			if err != nil {
				t.Errorf("%v\n%s", err, listed(r))
			}
			all, failed := found(r)
			for _, name := range group {
				f := faults()[name]
				if want := cmp.Or(f.level, finding.Fail); all[f.check] != want {
					t.Errorf("%s: %s: %q, want %q\n%s", name, f.check, all[f.check], want, listed(r))
				}
			}
			for _, check := range failed {
				if !expected[check] {
					t.Errorf("%s is found, too:\n%s", check, listed(r))
				}
			}
			if strings.Contains(listed(r), "pa55word-of-nobody") {
				t.Errorf("a secret is shown:\n%s", listed(r))
			}
		})
	}
}

// TestManyFaults: the table is as long as it is said to be, and each fault is found by a check that there is.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	all := faults()
	if len(all) < 50 {
		t.Errorf("%d faults", len(all))
	}
	known := names()
	for name, f := range all {
		for _, check := range append([]string{f.check}, f.also...) {
			if !slices.Contains(known, check) {
				t.Errorf("%s: there is no check %q", name, check)
			}
		}
	}
}

// names returns the names of all checks.
func names() []string {
	return append(Checks(),
		"stays-up", "time-limit", "leftover-mounts", "leftover-volumes", "secrets", "limits", "messages")
}

// afterwards are the checks of calls that are repeated after an interruption: what is wrong when a call is repeated at
// once is wrong then, too.
func afterwards(more ...string) []string {
	return append(more, "lost-answer", "same-at-once", "killed-create", "killed-stage", "killed-publish",
		"killed-unpublish", "killed-delete", "killed-mounts")
}

func identityFaults() map[string]fault {
	return map[string]fault{
		"a name that CSI does not allow": {check: "name", alone: true, spoil: spoils{
			"GetPluginInfo": on(func(_ *call, r *csipb.GetPluginInfoResponse) { r.Name = "my_driver" }),
		}},
		"another name later": {check: "name", spoil: spoils{
			"GetPluginInfo": on(func(c *call, r *csipb.GetPluginInfoResponse) {
				if c.count("name") == 3 {
					r.Name = "other.example.com"
				}
			}),
		}},
		"no version": {check: "version", spoil: spoils{
			"GetPluginInfo": on(func(_ *call, r *csipb.GetPluginInfoResponse) { r.VendorVersion = "" }),
		}},
		"not ready later": {check: "probe", spoil: spoils{
			"Probe": on(func(c *call, r *csipb.ProbeResponse) { r.Ready.Value = c.count("probe") != 3 }),
		}},
		"a promise that is not kept": {check: "promises", also: []string{"capacity"}, spoil: spoils{
			"GetCapacity": fails(codes.Unimplemented, "not yet"),
		}},
		"more than is promised": {check: "unpromised", level: finding.Warn, alone: true, spoil: spoils{
			"ControllerGetCapabilities": on(func(_ *call, r *csipb.ControllerGetCapabilitiesResponse) {
				r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csipb.ControllerServiceCapability) bool {
					return c.GetRpc().GetType() == csipb.ControllerServiceCapability_RPC_GET_CAPACITY
				})
			}),
		}},
		"no promise of the controller": {check: "controller-service", level: finding.Warn, alone: true, spoil: spoils{
			"GetPluginCapabilities": on(func(_ *call, r *csipb.GetPluginCapabilitiesResponse) { r.Capabilities = nil }),
		}},
		"a node of many names": {check: "node-info", also: []string{"delete-published"}, spoil: spoils{
			"NodeGetInfo": on(func(c *call, r *csipb.NodeGetInfoResponse) {
				if n := c.count("info"); n == 2 {
					r.NodeId = fmt.Sprint("node", n)
				}
			}),
		}},
		"a topology that is no label": {check: "node-info", spoil: spoils{
			"NodeGetInfo": on(func(c *call, r *csipb.NodeGetInfoResponse) {
				if c.count("info") > 0 {
					r.AccessibleTopology.Segments["rack no 1"] = "x"
				}
			}),
		}},
	}
}

func createFaults() map[string]fault {
	return map[string]fault{
		"a volume that is too small": {check: "create-volume", also: []string{
			"restore", "clone", "killed-create",
		}, spoil: spoils{
			"CreateVolume": on(func(_ *call, r *csipb.CreateVolumeResponse) { r.Volume.CapacityBytes /= 2 }),
		}},
		"no id": {check: "create-volume", spoil: spoils{
			"CreateVolume": on(func(_ *call, r *csipb.CreateVolumeResponse) { r.Volume.VolumeId = "" }),
		}, also: []string{"create-names", "leftover-volumes", "ten-at-once", "lost-answer", "same-at-once", "killed-create"}},
		"two volumes of one name": {check: "create-again", also: afterwards("create-conflict", "create-parameters",
			"leftover-volumes"), spoil: spoils{
			"CreateVolume": func(c *call) (proto.Message, error) {
				r := proto.Clone(c.req).(*csipb.CreateVolumeRequest)
				if r.Name != "" {
					r.Name = fmt.Sprintf("%.100s %d", r.Name, c.count("create"))
				}
				return c.ask(c.method, r)
			},
		}},
		"another answer the second time": {check: "create-again", spoil: spoils{
			"CreateVolume": on(func(c *call, r *csipb.CreateVolumeResponse) {
				r.Volume.VolumeContext = map[string]string{"at": fmt.Sprint(c.count("create"))}
			}),
		}},
		"another size is the same": {check: "create-conflict", spoil: spoils{
			"CreateVolume": func(c *call) (proto.Message, error) {
				m, err := c.pass()
				if status.Code(err) != codes.AlreadyExists {
					return m, err
				}
				r := proto.Clone(c.req).(*csipb.CreateVolumeRequest)
				r.CapacityRange = nil
				return c.ask(c.method, r)
			},
		}},
		"an odd code for another size": {check: "create-conflict", spoil: spoils{
			"CreateVolume": instead(codes.AlreadyExists, codes.Internal),
		}},
		"a range that cannot be": {check: "create-range", spoil: spoils{
			"CreateVolume": func(c *call) (proto.Message, error) {
				if r := c.req.(*csipb.CreateVolumeRequest).GetCapacityRange(); r != nil {
					r.LimitBytes = 0
				}
				return c.pass()
			},
		}},
		"names that are cut off": {check: "create-names", spoil: spoils{
			"CreateVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.CreateVolumeRequest)
				r.Name = r.Name[:min(len(r.Name), 64)]
				return c.pass()
			},
		}},
	}
}

func createMoreFaults() map[string]fault {
	return map[string]fault{
		"topology is ignored": {check: "topology", spoil: spoils{
			"CreateVolume": func(c *call) (proto.Message, error) {
				c.req.(*csipb.CreateVolumeRequest).AccessibilityRequirements = nil
				return c.pass()
			},
		}},
		"nothing is confirmed": {check: "validate", spoil: spoils{
			"ValidateVolumeCapabilities": on(func(_ *call, r *csipb.ValidateVolumeCapabilitiesResponse) { r.Confirmed = nil }),
		}},
		"capabilities are not needed": {check: "required-fields", spoil: spoils{
			"CreateVolume": func(c *call) (proto.Message, error) {
				r := c.req.(*csipb.CreateVolumeRequest)
				if r.Name != "" && len(r.VolumeCapabilities) == 0 {
					r.VolumeCapabilities = []*csipb.VolumeCapability{{
						AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
						AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
					}}
				}
				return c.pass()
			},
		}},
		"a missing target is an internal error": {check: "required-fields", spoil: spoils{
			"NodePublishVolume": func(c *call) (proto.Message, error) {
				if c.req.(*csipb.NodePublishVolumeRequest).GetTargetPath() == "" {
					return nil, status.Error(codes.Internal, "mkdir : no such file or directory")
				}
				return c.pass()
			},
		}},
	}
}

func deleteFaults() map[string]fault {
	return map[string]fault{
		"what is gone cannot be deleted": {
			check: "delete-again", also: []string{"unknown-ids", "lost-answer", "killed-delete", "leftover-volumes"},
			spoil: spoils{
				"DeleteVolume": func(c *call) (proto.Message, error) {
					id := c.req.(*csipb.DeleteVolumeRequest).GetVolumeId()
					if _, err := c.ask("/csi.v1.Controller/ControllerGetVolume",
						&csipb.ControllerGetVolumeRequest{VolumeId: id}); err != nil && id != "" {
						return nil, err
					}
					return c.pass()
				},
			},
		},
		"nothing is deleted": {
			check: "delete-volume", also: []string{"unknown-ids", "delete-published", "killed-delete", "leftover-volumes"},
			spoil: spoils{
				"DeleteVolume": func(c *call) (proto.Message, error) {
					if c.req.(*csipb.DeleteVolumeRequest).GetVolumeId() == "" {
						return c.pass()
					}
					return &csipb.DeleteVolumeResponse{}, nil
				},
			},
		},
		"unknown volumes are internal errors": {check: "unknown-ids", spoil: spoils{
			"NodeStageVolume": instead(codes.NotFound, codes.Internal),
		}},
	}
}

func listFaults() map[string]fault {
	return map[string]fault{
		"a list that has all on each page": {check: "list-volumes", spoil: spoils{
			"ListVolumes": func(c *call) (proto.Message, error) {
				c.req.(*csipb.ListVolumesRequest).MaxEntries = 0
				return c.pass()
			},
		}},
		"a list that never ends": {check: "list-volumes", spoil: spoils{
			"ListVolumes": on(func(c *call, r *csipb.ListVolumesResponse) {
				if most := c.req.(*csipb.ListVolumesRequest).GetMaxEntries(); most > 0 {
					r.NextToken = "0"
				}
			}),
		}},
		"any token will do": {check: "list-volumes", spoil: spoils{"ListVolumes": instead(codes.Aborted, codes.OK)}},
		"a list without the last volume": {
			check: "list-volumes", spoil: spoils{"ListVolumes": on(func(_ *call, r *csipb.ListVolumesResponse) {
				// Of the doctor's volumes at least one is lost, also if others are in the list.
				if r.NextToken == "" && len(r.Entries) > 1 {
					r.Entries = r.Entries[:1]
				}
			})},
		},
		"no capacity": {check: "capacity", spoil: spoils{
			"GetCapacity": on(func(_ *call, r *csipb.GetCapacityResponse) { r.AvailableCapacity = 0 }),
		}},
	}
}

func attachFaults() map[string]fault {
	return map[string]fault{
		"another context the second time": {check: "controller-publish-again", spoil: spoils{
			"ControllerPublishVolume": on(func(c *call, r *csipb.ControllerPublishVolumeResponse) {
				r.PublishContext["lun"] = fmt.Sprint(c.count("attach"))
			}),
		}},
		"a published volume is deleted": {check: "delete-published", spoil: spoils{
			"DeleteVolume": func(c *call) (proto.Message, error) {
				id := c.req.(*csipb.DeleteVolumeRequest).GetVolumeId()
				_, _ = c.ask("/csi.v1.Controller/ControllerUnpublishVolume",
					&csipb.ControllerUnpublishVolumeRequest{VolumeId: id})
				return c.pass()
			},
		}},
		"nodes that it was published to": {check: "published-nodes", spoil: spoils{
			"ControllerGetVolume": on(func(_ *call, r *csipb.ControllerGetVolumeResponse) {
				r.Status.PublishedNodeIds = []string{"node"}
			}),
		}},
		"detached once only": {
			check: "controller-unpublish", also: []string{"lost-answer", "unknown-ids"}, spoil: spoils{
				"ControllerUnpublishVolume": func(c *call) (proto.Message, error) {
					r, err := c.ask("/csi.v1.Controller/ControllerGetVolume", &csipb.ControllerGetVolumeRequest{
						VolumeId: c.req.(*csipb.ControllerUnpublishVolumeRequest).GetVolumeId(),
					})
					if err == nil && len(r.(*csipb.ControllerGetVolumeResponse).GetStatus().GetPublishedNodeIds()) == 0 {
						return nil, status.Error(codes.Internal, "it is not attached")
					}
					return c.pass()
				},
			},
		},
		"an unknown node": {check: "unknown-ids", spoil: spoils{
			"ControllerPublishVolume": func(c *call) (proto.Message, error) {
				c.req.(*csipb.ControllerPublishVolumeRequest).NodeId = "node"
				return c.pass()
			},
		}, also: []string{"required-fields"}},
	}
}

// keep writes a file that survives the driver.
func (p *proxy) keep(name, text string) error {
	return os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600)
}

func (p *proxy) kept(name string) bool {
	_, err := os.Stat(filepath.Join(p.dir, name))
	return err == nil
}
