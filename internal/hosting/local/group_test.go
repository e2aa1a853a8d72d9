package local

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit"
)

func (w *poolDriver) group(name string, ids ...string) (*csipb.VolumeGroupSnapshot, error) {
	r, err := w.g.CreateVolumeGroupSnapshot(w.Context(),
		&csipb.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: ids})
	return r.GetGroupSnapshot(), err
}

func (w *poolDriver) deleteGroup(id string, members ...string) error {
	_, err := w.g.DeleteVolumeGroupSnapshot(w.Context(),
		&csipb.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})
	return err
}

func (w *poolDriver) getGroup(id string, members ...string) (*csipb.VolumeGroupSnapshot, error) {
	r, err := w.g.GetVolumeGroupSnapshot(w.Context(),
		&csipb.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})
	return r.GetGroupSnapshot(), err
}

func snapshotIDs(g *csipb.VolumeGroupSnapshot) []string {
	var out []string
	for _, s := range g.GetSnapshots() {
		out = append(out, s.GetSnapshotId())
	}
	return out
}

// TestGroup: a group is taken once for a name, of all its volumes, also when they are gone by then. Its snapshots are
// like others, but go with the group only.
func TestGroup(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	a, b := w.create("a", 32*mib, "ext4", nil), w.create("b", 16*mib, "block", nil)
	fresh := w.create("fresh", 32*mib, "ext4", nil)
	a.use()
	a.write("of a")
	b.use()
	b.write("of b")
	b.rest()
	g, err := w.group("g", fresh.id, b.id, a.id)
	w.ok(err)
	w.consists(g, 3)
	alone := w.snapshot("alone", a.id)
	all, err := w.c.ListSnapshots(t.Context(), &csipb.ListSnapshotsRequest{})
	if w.ok(err); len(all.GetEntries()) != 4 {
		t.Errorf("all snapshots are %v", all)
	}
	a.write("new")
	a.rest()
	for _, d := range []*disk{a, b, fresh} {
		w.ok(w.delete(d.id))
	}
	for _, order := range [][]string{{a.id, b.id, fresh.id}, {fresh.id, b.id, a.id}} {
		if again, err := w.group("g", order...); err != nil || again.String() != g.String() {
			t.Errorf("again: %v, %v; first %v", again, err, g)
		}
	}
	if got, err := w.getGroup(g.GetGroupSnapshotId(), snapshotIDs(g)...); err != nil || got.String() != g.String() {
		t.Errorf("got %v, %v; want %v", got, err, g)
	}
	for _, s := range g.GetSnapshots() {
		of := map[string]*disk{a.id: a, b.id: b, fresh.id: fresh}[s.GetSourceVolumeId()]
		restored := w.create("restored", s.GetSizeBytes(), of.fsType, fromSnapshot(s.GetSnapshotId()))
		restored.use()
		if of != fresh {
			restored.holds(map[*disk]string{a: "of a", b: "of b"}[of])
		}
		restored.end()
	}
	w.ok(w.deleteGroup(g.GetGroupSnapshotId(), snapshotIDs(g)...))
	w.ok(w.deleteGroup(g.GetGroupSnapshotId(), snapshotIDs(g)...))
	_, err = w.getGroup(g.GetGroupSnapshotId())
	w.refused("get of what is gone", err, codes.NotFound)
	w.ok(w.delete(snapshotIDs(g)[0]))
	w.ok(w.delete(alone))
	w.empty()
}

// consists wants a group of so many snapshots, each of which is the same alone.
func (w *poolDriver) consists(g *csipb.VolumeGroupSnapshot, snapshots int) {
	w.Helper()
	if !g.GetReadyToUse() || len(g.GetSnapshots()) != snapshots || g.GetCreationTime() == nil {
		w.Fatalf("group %v", g)
	}
	for _, s := range g.GetSnapshots() {
		one, err := w.c.GetSnapshot(w.Context(), &csipb.GetSnapshotRequest{SnapshotId: s.GetSnapshotId()})
		w.ok(err)
		if one.GetSnapshot().String() != s.String() || s.GetGroupSnapshotId() != g.GetGroupSnapshotId() ||
			!s.GetCreationTime().AsTime().Equal(g.GetCreationTime().AsTime()) || s.GetSourceVolumeId() == "" {
			w.Errorf("the group has %v, alone it is %v", s, one)
		}
		w.refused("delete of one", w.delete(s.GetSnapshotId()), codes.InvalidArgument, "delete the group")
	}
}

// TestGroupRefused: what cannot be had of a group says why, and leaves nothing.
func TestGroupRefused(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	a, b, c := w.create("a", mib, "block", nil), w.create("b", mib, "block", nil), w.create("c", mib, "block", nil)
	g, err := w.group("g", a.id, b.id)
	w.ok(err)
	before := w.tree()
	missing := volumes.idOf("missing")
	many := make([]string, maxMembers+1)
	for i := range many {
		many[i] = volumes.idOf(fmt.Sprint(i))
	}
	for _, r := range []struct {
		name string
		ids  []string
		code codes.Code
		says string
	}{
		{"", []string{a.id}, codes.InvalidArgument, "name"},
		{strings.Repeat("n", 129), []string{a.id}, codes.InvalidArgument, "name"},
		{"new", nil, codes.InvalidArgument, "0 volumes"},
		{"new", many, codes.InvalidArgument, "101 volumes"},
		{"new", []string{a.id, a.id}, codes.InvalidArgument, "twice"},
		{"new", []string{a.id, missing}, codes.NotFound, missing},
		{"new", []string{a.id, "../volumes/" + a.id}, codes.NotFound, "not an id"},
		{"new", []string{a.id, ""}, codes.NotFound, "not an id"},
		{"g", []string{a.id}, codes.AlreadyExists, "group-"},
		{"g", []string{a.id, b.id, c.id}, codes.AlreadyExists, "choose another name"},
		{"g", []string{a.id, c.id}, codes.AlreadyExists, "delete it first"},
	} {
		_, err := w.group(r.name, r.ids...)
		w.refused(fmt.Sprintf("group %.5q of %d", r.name, len(r.ids)), err, r.code, r.says)
	}
	_, err = w.g.CreateVolumeGroupSnapshot(t.Context(), &csipb.CreateVolumeGroupSnapshotRequest{
		Name: "new", SourceVolumeIds: []string{a.id}, Parameters: map[string]string{"size": "1"},
	})
	w.refused("unknown parameter", err, codes.InvalidArgument, "size")
	id, members := g.GetGroupSnapshotId(), snapshotIDs(g)
	for _, other := range [][]string{members[:1], {members[0], members[0]}, append(slices.Clone(members), "snap-x")} {
		w.refused("delete with other snapshots", w.deleteGroup(id, other...), codes.InvalidArgument, "not those of group")
		_, err = w.getGroup(id, other...)
		w.refused("get with other snapshots", err, codes.InvalidArgument, "not those of group")
	}
	for _, name := range append(hostileNames(), members[0], a.id) {
		_, err = w.getGroup(name)
		w.refused(fmt.Sprintf("get of %.40q", name), err, codes.NotFound)
		w.ok(w.deleteGroup(name))
	}
	_, err = w.getGroup("")
	w.refused("get of none", err, codes.InvalidArgument)
	w.refused("delete of none", w.deleteGroup(""), codes.InvalidArgument)
	w.unchanged(before)
	w.ok(w.deleteGroup(id))
	for _, d := range []*disk{a, b, c} {
		w.ok(w.delete(d.id))
	}
	w.empty()
}

// TestGroupOfRawDevice: the writes of a raw device cannot be held back, so it is in no group while it is in use; what
// was frozen before that was known is thawed.
func TestGroupOfRawDevice(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	a, raw := w.create("a", 32*mib, "ext4", nil), w.create("raw", mib, "block", nil)
	a.use()
	w.ok(raw.attach())
	w.ok(raw.stage())
	_, err := w.group("g", a.id, raw.id)
	w.ok(err)
	w.ok(w.deleteGroup(groups.idOf("g")))
	w.ok(raw.publish(false))
	for range 2 {
		_, err = w.group("g", a.id, raw.id)
		w.refused("group", err, codes.FailedPrecondition, raw.id, raw.target, "take it out of the group")
		if a.frozen() {
			t.Error("the other volume is still frozen")
		}
	}
	a.rest()
	raw.rest()
	w.ok(w.delete(a.id))
	w.ok(w.delete(raw.id))
	w.empty()
}

// TestGroupDamaged: a group of which a piece is missing is neither used nor deleted.
func TestGroupDamaged(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(w *poolDriver, dir, member string){
		"no record": func(w *poolDriver, dir, _ string) { w.ok(os.Remove(filepath.Join(dir, groupFile))) },
		"empty record": func(w *poolDriver, dir, _ string) {
			w.ok(os.WriteFile(filepath.Join(dir, groupFile), []byte("{}"), 0o600))
		},
		"no member": func(w *poolDriver, dir, member string) { w.ok(removeEntry(filepath.Join(dir, member))) },
		"no image":  func(w *poolDriver, dir, member string) { w.ok(os.Remove(filepath.Join(dir, member, imageFile))) },
		"not a directory": func(w *poolDriver, dir, _ string) {
			w.ok(removeGroupDir(dir))
			w.ok(os.WriteFile(dir, nil, 0o600))
		},
		"member of others": func(w *poolDriver, dir, member string) {
			path := filepath.Join(dir, member, recordFile)
			w.ok(os.WriteFile(path, []byte(fmt.Sprintf(`{"id":%q,"source":"vol-x"}`, member)), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPoolDriver(t)
			a, b := w.create("a", mib, "block", nil), w.create("b", mib, "block", nil)
			g, err := w.group("g", a.id, b.id)
			w.ok(err)
			id := g.GetGroupSnapshotId()
			damage(w, filepath.Join(w.pool, "groups", id), snapshotIDs(g)[1])
			before := w.tree()
			w.restart()
			_, err = w.getGroup(id)
			w.refused("get", err, codes.Internal, "damaged", "manually")
			w.refused("delete", w.deleteGroup(id), codes.Internal, "damaged")
			_, err = w.group("g", a.id, b.id)
			w.refused("create", err, codes.Internal, "damaged")
			_, err = w.c.ListSnapshots(t.Context(), &csipb.ListSnapshotsRequest{})
			w.ok(err)
			w.unchanged(before)
		})
	}
}

// TestGroupLocks: a group does not wait forever for a lock, and a volume cannot be changed while it is copied.
func TestGroupLocks(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	a, b := w.create("a", mib, "block", nil), w.create("b", mib, "block", nil)
	g, err := w.group("g", a.id, b.id)
	w.ok(err)
	other := &pool{dir: w.pool}
	member := snapshotIDs(g)[1]
	_, releaseVolume, err := other.hold(t.Context(), volumes, b.id, unix.LOCK_SH, 0)
	w.ok(err)
	_, releaseMember, err := other.hold(t.Context(), snapshots, member, unix.LOCK_SH, 0)
	w.ok(err)
	deleted := make(chan error, 1)
	go func() { deleted <- w.deleteGroup(g.GetGroupSnapshotId()) }()
	_, err = w.group("new", a.id, b.id)
	w.refused("create", err, codes.Aborted, b.id, "try again")
	w.refused("delete", <-deleted, codes.Aborted, member, "try again")
	releaseVolume()
	releaseMember()
	_, err = w.group("new", a.id, b.id)
	w.ok(err)
	w.ok(w.deleteGroup(g.GetGroupSnapshotId()))
	w.ok(w.deleteGroup(groups.idOf("new")))
	// Both at the same time: one creates it, and both return it.
	answers := make(chan string, 2)
	for range 2 {
		go func() {
			g, err := w.group("both", a.id, b.id)
			answers <- fmt.Sprint(g, err)
		}()
	}
	if one, two := <-answers, <-answers; one != two {
		t.Errorf("%s, and %s", one, two)
	}
	w.ok(w.deleteGroup(groups.idOf("both")))
	w.ok(w.delete(a.id))
	w.ok(w.delete(b.id))
	w.empty()
}

// TestGroupGarbage: what a driver that was killed between two steps has left of a group is removed when the next one
// starts, unless another driver is at work on it.
func TestGroupGarbage(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	member := memberOf(groups.idOf("g"), "vol-x")
	for name, files := range map[string]map[string]string{
		"directory made": {".new-1/": ""},
		"member made":    {".new-1/" + member + "/": ""},
		"images made":    {".new-1/" + member + "/disk.img": "", ".new-1/" + member + "2/disk.img": ""},
		"members ready":  {".new-1/" + member + "/disk.img": "data", ".new-1/" + member + "/volume.json": "{}"},
		"record begun":   {".new-1/" + member + "/disk.img": "data", ".new-1/group.json.tmp": "{"},
		"to be deleted": {
			".new-gone-" + groups.idOf("g") + "/" + member + "/volume.json": "{}",
			".new-gone-" + groups.idOf("g") + "/group.json":                 "{}",
		},
	} {
		for path, data := range files {
			at := filepath.Join(w.pool, "groups", path)
			w.ok(os.MkdirAll(filepath.Dir(at), 0o700))
			if !strings.HasSuffix(path, "/") {
				w.ok(os.WriteFile(at, []byte(data), 0o600))
			} else {
				w.ok(os.MkdirAll(at, 0o700))
			}
		}
		image, err := os.Open(filepath.Join(w.pool, "groups/.new-1", member, imageFile))
		if err == nil {
			w.ok(unix.Flock(int(image.Fd()), unix.LOCK_EX))
			before := w.tree()
			w.restart()
			w.unchanged(before)
			w.ok(image.Close())
		}
		w.restart()
		if t.Failed() {
			t.Fatal(name)
		}
		w.empty()
	}
}

// TestThawOfHidden: a thaw reaches the filesystem also when something else is mounted over its path by then.
func TestThawOfHidden(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 32*mib, "ext4", nil)
	d.use()
	thaw, err := mount.Freeze(d.target)
	w.ok(err)
	w.ok(unix.Mount("tmpfs", d.target, "tmpfs", 0, ""))
	w.ok(thaw())
	testkit.Unmount(w, d.target)
	if d.frozen() {
		t.Error("still frozen")
	}
	d.end()
	w.empty()
}

// TestGroupGivenUp: a caller that has stopped waiting gets no group, and nothing stays frozen.
func TestGroupGivenUp(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	a := w.create("a", 32*mib, "ext4", nil)
	a.use()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.Int64N(int64(5*time.Millisecond))))
		r := &csipb.CreateVolumeGroupSnapshotRequest{Name: fmt.Sprint(i), SourceVolumeIds: []string{a.id}}
		_, _ = w.g.CreateVolumeGroupSnapshot(ctx, r)
		cancel()
		_, err := w.g.CreateVolumeGroupSnapshot(t.Context(), r)
		w.ok(err)
		w.ok(w.deleteGroup(groups.idOf(r.GetName())))
		if a.frozen() {
			t.Fatal("still frozen")
		}
	}
	a.end()
	w.empty()
}
