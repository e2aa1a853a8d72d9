package local

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/testkit"
)

// tree lists everything below the driver's directory, with the kind of each.
func (w *poolDriver) tree() []string {
	w.Helper()
	var out []string
	w.ok(filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		out = append(out, fmt.Sprint(path, " ", d.Type()))
		return err
	}))
	return out
}

// unchanged checks that nothing was created or removed since before.
func (w *poolDriver) unchanged(before []string) {
	w.Helper()
	if diff := cmp.Diff(before, w.tree()); diff != "" {
		w.Errorf("what is left (+) or gone (-):\n%s", diff)
	}
	for device, file := range loops(w.T, w.dir) {
		w.Errorf("left attached: %s over %s", device, file)
	}
}

func hostileNames() []string {
	return []string{
		"..", ".", "/", "../../etc/passwd", "a/b", "a\x00b", "\n", " ", "-rf", "$(id)", ".new-x", "volume.json", "日本語",
		"vol-../../../../../../../../../../x", "vol-" + strings.Repeat("A", 32), "snap-" + strings.Repeat("0", 32) + "\n",
		"vol-" + strings.Repeat("0", 32), "vol-" + strings.Repeat("0", 31), "vol-" + strings.Repeat("0", 32) + "/..",
	}
}

// TestHostileNames: a name is never a path.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	before := w.tree()
	for _, name := range []string{"", strings.Repeat("n", 129), strings.Repeat("n", 10<<10)} {
		_, err := w.c.CreateVolume(t.Context(), request(name, mib, "block"))
		w.refused("volume name", err, codes.InvalidArgument, "name", "128")
		_, err = w.c.CreateSnapshot(t.Context(),
			&csipb.CreateSnapshotRequest{Name: name, SourceVolumeId: "vol-" + strings.Repeat("0", 32)})
		w.refused("snapshot name", err, codes.InvalidArgument, "name", "128")
	}
	made := map[string]string{}
	for _, name := range hostileNames() {
		v, err := w.c.CreateVolume(t.Context(), request(name, mib, "block"))
		w.ok(err)
		id := v.GetVolume().GetVolumeId()
		if other, twice := made[id]; twice || volumes.checkID(id) != nil {
			t.Errorf("names %q and %q are volume %q", name, other, id)
		}
		made[id] = name
		w.ok(w.delete(w.snapshot(name, id)))
	}
	for id := range made {
		w.ok(w.delete(id))
	}
	w.unchanged(before)
}

// calls are all calls with an id, and how each answers an invalid one.
func (w *poolDriver) calls(id string) map[string]error {
	ctx, volume, block := w.Context(), w.disk("hostile", id, "block"), capability("block")
	_, expand := w.c.ControllerExpandVolume(ctx,
		&csipb.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csipb.CapacityRange{RequiredBytes: mib}})
	_, get := w.c.ControllerGetVolume(ctx, &csipb.ControllerGetVolumeRequest{VolumeId: id})
	_, validate := w.c.ValidateVolumeCapabilities(ctx,
		&csipb.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: []*csipb.VolumeCapability{block}})
	_, snapshot := w.c.CreateSnapshot(ctx, &csipb.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	_, stats := w.n.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: w.dir})
	clone, restore := request("c", mib, "block"), request("r", mib, "block")
	clone.VolumeContentSource, restore.VolumeContentSource = fromVolume(id), fromSnapshot(id)
	_, cloned := w.c.CreateVolume(ctx, clone)
	_, restored := w.c.CreateVolume(ctx, restore)
	return map[string]error{
		"ControllerExpandVolume": expand, "ControllerGetVolume": get, "ValidateVolumeCapabilities": validate,
		"CreateSnapshot":     snapshot,
		"NodeGetVolumeStats": stats, "clone": cloned, "restore": restored, "ControllerPublishVolume": volume.attach(),
		"NodeStageVolume": volume.stage(), "NodeUnstageVolume": volume.unstage(), "NodePublishVolume": volume.publish(false),
		"NodeUnpublishVolume": volume.unpublish(), "NodeExpandVolume": volume.nodeExpand(),
	}
}

// TestHostileIDs: an id that this driver has not given is that of nothing.
func TestHostileIDs(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	outside := filepath.Join(w.dir, "vol-"+strings.Repeat("1", 32))
	w.ok(os.Mkdir(outside, 0o700))
	w.ok(os.WriteFile(filepath.Join(outside, "disk.img"), blob("precious"), 0o600))
	w.disk("hostile", "", "")
	before := w.tree()
	ids := append(hostileNames(), "../../"+filepath.Base(outside), outside, strings.Repeat("i", 10<<10),
		"vol-"+strings.Repeat("1", 10<<10))
	for _, id := range ids {
		for call, err := range w.calls(id) {
			w.refused(fmt.Sprintf("%s of %.40q", call, id), err, codes.NotFound)
		}
		w.ok(w.delete(id))
		_, err := w.c.DeleteSnapshot(t.Context(), &csipb.DeleteSnapshotRequest{SnapshotId: id})
		w.ok(err)
		w.ok(w.disk("hostile", id, "block").detach())
		list, err := w.c.ListSnapshots(t.Context(), &csipb.ListSnapshotsRequest{SnapshotId: id})
		if err != nil || len(list.GetEntries()) > 0 {
			t.Errorf("snapshots of %q: %v, %v", id, list, err)
		}
	}
	for call, err := range w.calls("") {
		if call != "clone" && call != "restore" { // an empty id there is one that is not known
			w.refused(call+" without an id", err, codes.InvalidArgument, "no ")
		}
	}
	w.unchanged(before)
}

// TestHostileNodes: only nodes that a driver has served can have a volume.
func TestHostileNodes(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", mib, "block", nil)
	before := w.tree()
	for _, node := range append(hostileNames(), strings.Repeat("n", 10<<10), "../nodes/"+digest("node"), digest("node")) {
		_, err := w.c.ControllerPublishVolume(t.Context(),
			&csipb.ControllerPublishVolumeRequest{VolumeId: d.id, NodeId: node, VolumeCapability: capability("block")})
		w.refused(fmt.Sprintf("publish to node %.40q", node), err, codes.NotFound, "start one there")
		_, err = w.c.ControllerUnpublishVolume(t.Context(),
			&csipb.ControllerUnpublishVolumeRequest{VolumeId: d.id, NodeId: node})
		w.ok(err)
	}
	w.unchanged(before)
	w.ok(w.delete(d.id))
}

// TestSizes: every size is provided, or refused for good, with nothing left.
func TestSizes(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	before := w.tree()
	const exbi = 1 << 60
	for i, c := range []struct {
		required, limit int64
		fsType          string
		want            int64 // 0 is OutOfRange
		words           string
	}{
		{0, 0, "block", 1 << 30, ""},
		{0, 0, "xfs", 1 << 30, ""},
		{1, 0, "block", mib, ""},
		{1, 0, "ext4", mib, ""},
		{1, 0, "xfs", 300 * mib, ""},
		{1, 0, "btrfs", 256 * mib, ""},
		{mib + 1, 0, "block", 2 * mib, ""},
		{0, mib + mib/2, "block", mib, ""},
		{0, mib, "block", mib, ""},
		{0, 1, "block", 0, "raise the limit"},
		{1, mib - 1, "block", 0, "raise the limit"},
		{1, 299 * mib, "xfs", 0, "raise the limit"},
		{2 * mib, mib, "block", 0, "no possible size"},
		{7 * exbi, 0, "block", 0, "ask for less"},
		{math.MaxInt64, 0, "block", 0, "ask for less"},
		{math.MaxInt64, math.MaxInt64, "block", 0, "ask for less"},
		{math.MaxInt64 - sizeStep, 0, "block", 0, "ask for less"},
		{-1, 0, "block", 0, "no possible size"},
		{0, -1, "block", 0, "no possible size"},
		{math.MinInt64, math.MinInt64, "block", 0, "no possible size"},
	} {
		r := request(fmt.Sprint("v", i), 0, c.fsType)
		r.CapacityRange = &csipb.CapacityRange{RequiredBytes: c.required, LimitBytes: c.limit}
		v, err := w.c.CreateVolume(t.Context(), r)
		if c.want == 0 {
			w.refused(fmt.Sprintf("%+v", c), err, codes.OutOfRange, c.words)
			continue
		}
		if got := v.GetVolume().GetCapacityBytes(); err != nil || got != c.want {
			t.Errorf("%+v: %d, %v", c, got, err)
			continue
		}
		again, err := w.c.CreateVolume(t.Context(), r)
		if err != nil || again.GetVolume().GetVolumeId() != v.GetVolume().GetVolumeId() {
			t.Errorf("%+v again: %v, %v", c, again, err)
		}
		w.ok(w.delete(v.GetVolume().GetVolumeId()))
	}
	w.unchanged(before)
}

// TestExpandSizes: the same for growing, which leaves the volume as it was.
func TestExpandSizes(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 4*mib, "block", nil)
	for _, c := range []struct {
		required, limit int64
		want            int64 // 0 is OutOfRange
	}{
		{0, 0, 4 * mib},
		{1, 0, 4 * mib},
		{1, 4 * mib, 4 * mib},
		{1, mib, 0},
		{8 * mib, 4 * mib, 0},
		{4*mib + 1, 4*mib + 2, 0},
		{-1, 0, 0},
		{math.MaxInt64, 0, 0},
		{1 << 60, 0, 0},
		{4*mib + 1, 5 * mib, 5 * mib},
		{1, 0, 5 * mib},
	} {
		r, err := w.c.ControllerExpandVolume(t.Context(), &csipb.ControllerExpandVolumeRequest{
			VolumeId: d.id, CapacityRange: &csipb.CapacityRange{RequiredBytes: c.required, LimitBytes: c.limit},
		})
		if c.want == 0 {
			w.refused(fmt.Sprintf("%+v", c), err, codes.OutOfRange)
		} else if err != nil || r.GetCapacityBytes() != c.want {
			t.Errorf("%+v: %v, %v", c, r, err)
		}
	}
	w.ok(w.delete(d.id))
	w.empty()
}

// TestWhatIsNotKnown: types, modes, parameters and pools.
func TestWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	before := w.tree()
	for name, c := range map[string]struct {
		change func(r *csipb.CreateVolumeRequest)
		code   codes.Code
		words  []string
	}{
		"fs type": {func(r *csipb.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = capability("../ext4")
		}, codes.InvalidArgument, []string{"../ext4", "ext4, xfs and btrfs"}},
		"fs type2": {func(r *csipb.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = capability("-F\x00" + strings.Repeat("x", 10<<10))
		}, codes.InvalidArgument, []string{"ext4, xfs and btrfs"}},
		"mode": {func(r *csipb.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.InvalidArgument, []string{"MULTI_NODE_MULTI_WRITER", "ReadWriteOnce"}},
		"no mode": {func(r *csipb.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode = nil
		}, codes.InvalidArgument, []string{"access mode"}},
		"no type": {func(r *csipb.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessType = nil
		}, codes.InvalidArgument, []string{"mount nor block"}},
		"no capabilities": {
			func(r *csipb.CreateVolumeRequest) { r.VolumeCapabilities = nil }, codes.InvalidArgument, []string{"capability"},
		},
		"parameter": {func(r *csipb.CreateVolumeRequest) {
			r.Parameters = map[string]string{"colour": "red"}
		}, codes.InvalidArgument, []string{"colour", "class"}},
		"10 KB parameter": {func(r *csipb.CreateVolumeRequest) {
			r.Parameters = map[string]string{strings.Repeat("p", 10<<10): ""}
		}, codes.InvalidArgument, []string{"class"}},
		"mutable": {func(r *csipb.CreateVolumeRequest) {
			r.MutableParameters = map[string]string{"iops": "1"}
		}, codes.InvalidArgument, []string{"attribute", "iops", "not known"}},
		"empty source": {func(r *csipb.CreateVolumeRequest) {
			r.VolumeContentSource = &csipb.VolumeContentSource{}
		}, codes.InvalidArgument, []string{"source"}},
		"topology": {func(r *csipb.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csipb.TopologyRequirement{
				Requisite: []*csipb.Topology{{Segments: map[string]string{"zone": "a"}}, {}},
			}
		}, codes.ResourceExhausted, []string{"pool"}},
	} {
		r := request("v", mib, "ext4")
		c.change(r)
		_, err := w.c.CreateVolume(t.Context(), r)
		w.refused(name, err, c.code, c.words...)
	}
	w.unchanged(before)
	r := request("v", mib, "ext4")
	r.Parameters = map[string]string{"csi.storage.k8s.io/pvc/name": "claim", "fsType": "ext4"}
	v, err := w.c.CreateVolume(t.Context(), r)
	w.ok(err)
	w.ok(w.delete(v.GetVolume().GetVolumeId()))
}

// TestHostilePaths: nothing is made, mounted or unmounted by way of a path
// that is not one place.
func TestHostilePaths(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	elsewhere := filepath.Join(w.dir, "elsewhere")
	w.ok(os.Mkdir(elsewhere, 0o700))
	w.ok(os.Symlink(elsewhere, filepath.Join(w.dir, "link")))
	w.ok(os.Symlink(filepath.Join(w.dir, "nowhere"), filepath.Join(w.dir, "dangling")))
	w.ok(os.WriteFile(filepath.Join(w.dir, "file"), []byte("precious"), 0o600))
	w.ok(os.WriteFile(filepath.Join(w.dir, "empty"), nil, 0o600))
	full := filepath.Join(w.dir, "full")
	w.ok(os.MkdirAll(filepath.Join(full, "x"), 0o700))
	wrong := map[string]string{"ext4": filepath.Join(w.dir, "empty"), "block": elsewhere}
	for _, fsType := range []string{"ext4", "block"} {
		d := w.create("v"+fsType, 16*mib, fsType, nil)
		w.ok(d.attach())
		before := w.tree()
		bad := []string{
			"", "relative", "./x", "../x", w.dir + "/", w.dir + "/a/../b", w.dir + "//x", w.dir + "/link", w.dir + "/link/x",
			w.dir + "/dangling", w.dir + "/a\x00b", "/" + strings.Repeat("p", 10<<10), w.dir + "/file/x",
		}
		for _, path := range bad {
			b := *d
			b.staging = path
			w.refused(fmt.Sprintf("stage at %.40q", path), b.stage(), codes.InvalidArgument, "path")
			w.refused(fmt.Sprintf("unstage at %.40q", path), b.unstage(), codes.InvalidArgument, "path")
			w.unchanged(before)
		}
		w.ok(d.stage())
		for _, path := range bad {
			b := *d
			b.target = path
			w.refused(fmt.Sprintf("publish at %.40q", path), b.publish(false), codes.InvalidArgument, "path")
			w.refused(fmt.Sprintf("unpublish at %.40q", path), b.unpublish(), codes.InvalidArgument, "path")
		}
		for path, words := range map[string]string{w.dir + "/no/parent": "no such", w.dir +
			"/file": "remove it first", full: "remove it first", wrong[fsType]: "remove it first"} {
			b := *d
			b.target = path
			if err := b.publish(false); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("publish at %s: %v", path, err)
			}
		}
		w.ok(d.unstage())
		w.unchanged(before)
		w.ok(d.detach())
		w.ok(w.delete(d.id))
	}
}

// TestStrangersStayMounted: a call for one volume removes nothing that does not belong to
// it.
func TestStrangersStayMounted(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	a, b, c := w.create("a", 16*mib, "ext4", nil), w.create("b", 16*mib, "ext4", nil), w.create("c", 16*mib, "block", nil)
	for _, d := range []*disk{a, b, c} {
		d.use()
		d.write(d.id)
	}
	tmpfs := filepath.Join(w.dir, "tmpfs")
	w.ok(os.Mkdir(tmpfs, 0o700))
	w.ok(unix.Mount("tmpfs", tmpfs, "tmpfs", 0, ""))
	w.Cleanup(func() { testkit.Unmount(w, tmpfs) })
	for _, path := range []string{b.staging, b.target, c.target, tmpfs, "/", "/dev", "/proc"} {
		x := *a
		x.staging, x.target = path, path
		w.refused("unstage "+path, x.unstage(), codes.FailedPrecondition, a.id, path, "nothing was unmounted")
		w.refused("unpublish "+path, x.unpublish(), codes.FailedPrecondition, a.id, path, "nothing was unmounted")
		w.refused("stage "+path, x.stage(), codes.FailedPrecondition, path, "unmount that first")
		if _, err := a.n.NodeGetVolumeStats(t.Context(),
			&csipb.NodeGetVolumeStatsRequest{VolumeId: a.id, VolumePath: path}); status.Code(err) != codes.NotFound {
			t.Errorf("statistics of %s: %v", path, err)
		}
		w.refused("expand "+path, x.nodeExpand(), codes.NotFound, a.id, path)
		x.staging = a.staging
		w.refused("publish "+path, x.publish(false), codes.FailedPrecondition, path, "unmount that first")
	}
	w.refused("delete in use", w.delete(a.id), codes.FailedPrecondition, a.id, "node", "unpublish it there first")
	for _, d := range []*disk{a, b, c} {
		d.holds(d.id)
		d.end()
	}
	w.empty()
}

func FuzzArguments(f *testing.F) {
	for _, s := range append(hostileNames(), "", "0", "1", "-1", "2x", "99999999999999999999", "/a/b", "/a/../b") {
		f.Add(s, int32(0))
		f.Add(s, int32(2))
	}
	p := &pool{dir: f.TempDir()}
	f.Fuzz(func(t *testing.T, s string, n int32) {
		for _, k := range []kind{volumes, snapshots} {
			tryID(t, p, k, s)
		}
		if checkPath("path", s) == nil && (!filepath.IsAbs(s) || filepath.Clean(s) != s || strings.ContainsRune(s, 0)) {
			t.Errorf("path %q passes", s)
		}
		if checkParameters(map[string]string{s: ""}) == nil && !strings.HasPrefix(s, reserved) &&
			!strings.EqualFold(s, "fstype") {
			t.Errorf("parameter %q passes", s)
		}
		if p.knowsNode(s) {
			t.Errorf("node %q is known", s)
		}
		tryPage(t, s, n)
	})
}

func tryID(t *testing.T, p *pool, k kind, s string) {
	t.Helper()
	if got := filepath.Dir(p.path(k, s)); k.checkID(s) == nil &&
		(got != filepath.Join(p.dir, string(k)) || strings.HasPrefix(s, ".")) {
		t.Errorf("id %q leads to %s", s, got)
	}
	if id := k.idOf(s); k.checkID(id) != nil || k.checkID(id+s) == nil && s != "" {
		t.Errorf("name %q has id %q", s, id)
	}
	if _, err := p.get(k, s); err == nil {
		t.Errorf("there is a %q", s)
	}
}

func tryPage(t *testing.T, token string, n int32) {
	t.Helper()
	all := []string{"a", "b", "c"}
	some, next, err := page(all, token, n)
	if err == nil && (len(some) > len(all) || n > 0 && len(some) > int(n) || next != "" && len(some) == 0) {
		t.Errorf("page %q, %d: %v, %q", token, n, some, next)
	}
}
