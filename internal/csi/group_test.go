package csi_test

import (
	"errors"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// grouping is a driver that takes groups of snapshots.
func grouping() csitest.Config {
	c := csitest.Full()
	c.Plugin.GroupController, c.Group.Snapshot = true, true
	return c
}

func takeGroup(t *testing.T, c *csi.Driver, volumes ...string) (*csipb.VolumeGroupSnapshot, error) {
	r, err := c.GroupControllerClient().CreateVolumeGroupSnapshot(within(t, patience),
		&csipb.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: volumes})
	return r.GetGroupSnapshot(), err
}

func getGroup(t *testing.T, c *csi.Driver, members ...string) error {
	_, err := c.GroupControllerClient().GetVolumeGroupSnapshot(within(t, patience),
		&csipb.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: members})
	return err
}

// group is a group of snapshots; each member is SNAPSHOT/VOLUME or SNAPSHOT/VOLUME/GROUP.
func group(id string, members ...string) *csipb.VolumeGroupSnapshot {
	g := &csipb.VolumeGroupSnapshot{GroupSnapshotId: id}
	for _, m := range members {
		parts := append(strings.Split(m, "/"), "")
		g.Snapshots = append(g.Snapshots,
			&csipb.Snapshot{SnapshotId: parts[0], SourceVolumeId: parts[1], GroupSnapshotId: parts[2]})
	}
	return g
}

// TestGroupAnswers: an answer must be about the requested volumes, each once, and about one group. Otherwise the
// outcome of the call is unknown.
func TestGroupAnswers(t *testing.T) {
	d := csitest.Start(t, grouping())
	c := dial(t, d)
	for what, test := range map[string]struct {
		group *csipb.VolumeGroupSnapshot
		says  string
	}{
		"none":                       {nil, "no group snapshot id"},
		"no id":                      {group("", "a/v", "b/w"), "no group snapshot id"},
		"no members":                 {group("g"), "without that of"},
		"a member is missing":        {group("g", "a/v"), `without that of "w"`},
		"a member too many":          {group("g", "a/v", "b/w", "c/x"), `"x", which was not asked for`},
		"a member of another volume": {group("g", "a/v", "b/x"), `without that of "w"`},
		"one snapshot twice":         {group("g", "a/v", "a/w"), `two snapshots "a"`},
		"one volume twice":           {group("g", "a/v", "b/w", "c/w"), `two snapshots of volume "w"`},
		"a member without id":        {group("g", "a/v", "/w"), "without id"},
		"a member of no volume":      {group("g", "a/v", "b/"), "of no volume"},
		"a member of another group":  {group("g", "a/v/g", "b/w/h"), `of group "h" in group "g"`},
		"a long id":                  {group(strings.Repeat("g", 1025), "a/v", "b/w"), "1025 bytes"},
		"an id with a newline":       {group("g", "a\n/v", "b/w"), "control character"},
		"as it should be":            {group("g", "b/w", "a/v/g"), ""},
	} {
		d.OnCall("CreateVolumeGroupSnapshot",
			always(csitest.Action{Answer: &csipb.CreateVolumeGroupSnapshotResponse{GroupSnapshot: test.group}}))
		_, err := takeGroup(t, c, "v", "w")
		if test.says == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		} else if !errors.Is(err, csi.ErrAnswer) || csi.OutcomeOf(err) != volume.Unknown ||
			!strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q and an unknown outcome", what, err, test.says)
		}
	}
	for what, test := range map[string]struct {
		group   *csipb.VolumeGroupSnapshot
		members []string
		says    string
	}{
		"another group":      {group("h", "a/v"), nil, `group "h", and not "g"`},
		"one snapshot twice": {group("g", "a/v", "a/w"), nil, `two snapshots "a"`},
		"one is missing":     {group("g", "a/v"), []string{"a", "b"}, `without that of "b"`},
		"one too many":       {group("g", "a/v", "b/w"), []string{"a"}, `"b", which was not asked for`},
		"nothing was asked":  {group("g", "a/v", "b/w"), nil, ""},
		"as it should be":    {group("g", "a/v", "b/w"), []string{"b", "a"}, ""},
	} {
		d.OnCall("GetVolumeGroupSnapshot",
			always(csitest.Action{Answer: &csipb.GetVolumeGroupSnapshotResponse{GroupSnapshot: test.group}}))
		err := getGroup(t, c, test.members...)
		if (test.says == "") != (err == nil) || err != nil && (!errors.Is(err, csi.ErrAnswer) ||
			!strings.Contains(err.Error(), test.says)) {
			t.Errorf("get %s: %v, want %q", what, err, test.says)
		}
	}
}

// TestGroupLife: a group is created once, and its snapshots are deleted with it.
func TestGroupLife(t *testing.T) {
	d := csitest.Start(t, grouping())
	c := dial(t, d)
	for _, v := range []string{"v", "w"} {
		if err := create(t, c, v); err != nil {
			t.Fatal(err)
		}
	}
	first, err := takeGroup(t, c, "id-v", "id-w")
	if err != nil || len(first.GetSnapshots()) != 2 {
		t.Fatalf("%v, %v", first, err)
	}
	if second, err := takeGroup(t, c, "id-v", "id-w"); err != nil || second.String() != first.String() {
		t.Errorf("%v, %v, want %v", second, err, first)
	}
	if _, err := takeGroup(t, c, "id-v"); csi.Code(err) != codes.AlreadyExists {
		t.Errorf("of one volume: %v", err)
	}
	if _, err := c.GroupControllerClient().DeleteVolumeGroupSnapshot(within(t, patience),
		&csipb.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: first.GetGroupSnapshotId()}); err != nil {
		t.Error(err)
	}
	if len(d.Groups()) != 0 || len(d.Snapshots()) != 0 {
		t.Errorf("left: groups %v, snapshots %v", d.Groups(), d.Snapshots())
	}
	_, err = takeGroup(t, c, "v", "w\n")
	if !errors.Is(err, csi.ErrID) {
		t.Errorf("an id by hand: %v", err)
	}
}

// TestGroupService: the group controller is asked for if the driver reports that it has one. A driver without one, or
// whose process lacks it, works as before.
func TestGroupService(t *testing.T) {
	d := csitest.Start(t, grouping())
	if c := dial(t, d); !c.Plugin.GroupController || !c.Group.Snapshot {
		t.Errorf("plugin %+v, group %+v", c.Plugin, c.Group)
	}
	d.OnCall("GroupControllerGetCapabilities", always(csitest.Action{Err: status.Error(codes.Internal, "no")}))
	if _, err := csi.Dial(within(t, patience), d.Socket); csi.Code(err) != codes.Internal {
		t.Errorf("a group controller that fails: %v", err)
	}
	d.OnCall("GroupControllerGetCapabilities", always(csitest.Action{Err: status.Error(codes.Unimplemented, "no")}))
	if got := dial(t, d); got.Group.Snapshot || !got.HasController {
		t.Errorf("without a group controller: %+v", got)
	}
	without := csitest.Start(t, csitest.Full())
	if got := dial(t, without); got.Group.Snapshot || len(without.Calls()) != 0 {
		t.Errorf("%+v, after calls %v", got.Group, without.Calls())
	}
}

// TestGroupInTurn: a group has one call at a time.
func TestGroupInTurn(t *testing.T) {
	d := csitest.Start(t, grouping())
	c := dial(t, d)
	arrived, release := make(chan struct{}), make(chan struct{})
	d.OnCall("CreateVolumeGroupSnapshot", func(n int, _ any) csitest.Action {
		if n == 1 {
			close(arrived)
			<-release
		}
		return csitest.Action{Err: status.Error(codes.Internal, "no")}
	})
	first := make(chan error, 1)
	go func() {
		_, err := takeGroup(t, c, "v")
		first <- err
	}()
	<-arrived
	_, err := c.GroupControllerClient().CreateVolumeGroupSnapshot(within(t, brief),
		&csipb.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v"}})
	if !errors.Is(err, csi.ErrBusy) {
		t.Errorf("the second call: %v, want ErrBusy", err)
	}
	close(release)
	if err := <-first; csi.Code(err) != codes.Internal {
		t.Error(err)
	}
}
