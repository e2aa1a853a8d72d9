package local

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/mount"
)

// TestGarbage: what a driver that was killed between two steps has left is removed when
// the next one starts, and the call in which it was killed then succeeds.
func TestGarbage(t *testing.T) {
	t.Parallel()
	record := fmt.Sprintf(`{"id":%q,"name":"v"}`, volumes.idOf("v"))
	gone := ".new-gone-" + volumes.idOf("v")
	for name, files := range map[string]map[string]string{
		"directory made":         {".new-1/": ""},
		"image made":             {".new-1/disk.img": ""},
		"image filled":           {".new-1/disk.img": "data"},
		"record begun":           {".new-1/disk.img": "data", ".new-1/volume.json.tmp": record[:5]},
		"record written":         {".new-1/disk.img": "data", ".new-1/volume.json": record},
		"renamed to be deleted":  {gone + "/disk.img": "data", gone + "/volume.json": record, gone + "/node": "node"},
		"formatting and deleted": {gone + "/disk.img": "data", gone + "/formatting": ""},
		"record deleted":         {gone + "/disk.img": "data"},
		"image deleted":          {gone + "/": ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPoolDriver(t)
			make := func() {
				for path, data := range files {
					path = filepath.Join(w.pool, "volumes", path)
					w.ok(os.MkdirAll(filepath.Dir(path), 0o700))
					if filepath.Base(path) != ".new-1" && filepath.Base(path) != gone {
						w.ok(os.WriteFile(path, []byte(data), 0o600))
					}
				}
			}
			make()
			w.restart()
			w.empty()
			// Another driver's garbage, which stays until that driver starts again, does no harm.
			make()
			d := w.create("v", 16*mib, "ext4", nil)
			d.use()
			d.end()
			w.restart()
			w.empty()
		})
	}
}

// TestHalfDone: each call succeeds after the same call was killed half-way, and so does
// the call that undoes it.
func TestHalfDone(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 32*mib, "ext4", nil)
	image := filepath.Join(w.pool, "volumes", d.id, "disk.img")
	attached := func() string {
		device, err := new(mount.Loops).Attach(image, false)
		w.ok(err)
		return device
	}
	d.use()
	d.write("data")
	d.rest()
	for name, half := range map[string]func(){
		"draft of the node": func() { w.ok(os.WriteFile(filepath.Dir(image)+"/node.tmp", []byte("no"), 0o600)) },
		"attached":          func() { attached() },
		"attached and the staging path": func() {
			attached()
			w.ok(os.RemoveAll(d.staging))
			w.ok(os.Mkdir(d.staging, 0o750))
		},
		"target made": func() { w.ok(os.Mkdir(d.target, 0o750)) },
		"grown on the disk only": func() {
			attached()
			info, err := os.Stat(image)
			w.ok(err)
			w.ok(os.Truncate(image, info.Size()+8*mib))
		},
	} {
		half()
		w.restart()
		d.use()
		d.holds("data")
		if info, err := os.Stat(image); err != nil || d.size() < info.Size()*7/10 {
			t.Errorf("%s: the filesystem has %d bytes, %v", name, d.size(), err)
		}
		d.rest()
		half()
		w.restart()
		d.ok(d.unpublish())
		d.ok(d.unstage())
		d.ok(d.detach())
	}
	// Unpublishing the volume from a node that is gone leaves the device.
	attached()
	w.ok(w.delete(d.id))
	w.empty()
}

// TestUnfinishedFilesystem: a filesystem whose creation was interrupted is created again,
// whatever exists of it; never if it was mounted, and never while the program that
// creates it still runs.
func TestUnfinishedFilesystem(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]func(w *poolDriver, image string){
		"nothing yet": func(*poolDriver, string) {},
		"pieces": func(w *poolDriver, image string) {
			f, err := os.OpenFile(image, os.O_WRONLY, 0)
			w.ok(err)
			_, err = f.WriteAt(blob("pieces of a filesystem"), 5*mib)
			w.ok(err)
			w.ok(f.Close())
		},
		"all but its end": func(w *poolDriver, image string) {
			w.ok(exec.Command("mkfs.ext4", "-q", "-F", image).Run())
			f, err := os.OpenFile(image, os.O_WRONLY, 0)
			w.ok(err)
			_, err = f.WriteAt(make([]byte, 64<<10), 4096) // the descriptors of its groups
			w.ok(err)
			w.ok(f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPoolDriver(t)
			d := w.create("v", 32*mib, "ext4", nil)
			image := filepath.Join(w.pool, "volumes", d.id, "disk.img")
			left(w, image)
			w.ok(os.WriteFile(filepath.Dir(image)+"/formatting", nil, 0o600))
			device, err := new(mount.Loops).Attach(image, false)
			w.ok(err)
			clone := w.create("clone", 32*mib, "ext4", fromVolume(d.id))
			clone.use()
			clone.end()

			running, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL, 0)
			w.ok(err)
			w.ok(d.attach())
			w.refused("stage while it is made", d.stage(), codes.Aborted, d.id, "try again")
			w.ok(running.Close())
			// A program that another test starts has the device open, too, between fork and exec.
			for status.Code(d.stage()) == codes.Aborted {
			}
			d.use()
			d.write("data")
			d.rest()
			d.use()
			d.holds("data")
			d.end()
			w.empty()
		})
	}
}

// TestBlockUseEndsFormatting: what was written to the raw device of a volume
// whose filesystem was never finished is not taken for a piece of that.
func TestBlockUseEndsFormatting(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 32*mib, "block", nil)
	w.ok(os.WriteFile(filepath.Join(w.pool, "volumes", d.id, "formatting"), nil, 0o600))
	d.use()
	d.write("data")
	d.rest()
	d.fsType = "ext4"
	w.ok(d.attach())
	w.refused("stage raw data", d.stage(), codes.FailedPrecondition, "never formatted")
	w.ok(d.detach())
	w.ok(w.delete(d.id))
	w.empty()
}

// TestThaw: a driver that starts thaws what a killed one has left frozen, but not what
// another one is copying.
func TestThaw(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 32*mib, "ext4", nil)
	d.use()
	other := &pool{dir: w.pool}
	_, release, err := other.hold(t.Context(), volumes, d.id, unix.LOCK_EX, 0)
	w.ok(err)
	thaw, err := mount.Freeze(d.target)
	w.ok(err)
	thaw = sync.OnceValue(thaw)
	t.Cleanup(func() { _ = thaw() })
	w.restart()
	if !d.frozen() {
		t.Error("thawed while it is copied")
	}
	release()
	eventually(t, "thaw by the driver that found it locked", func() bool { return !d.frozen() })
	if thaw() == nil {
		t.Error("it was frozen")
	}
	d.write("data")
	d.end()
	w.empty()
}

// TestFrozenByOthers: what another program has frozen, as backups do, is copied and stays frozen, and is unmounted
// also if that program never thaws it.
func TestFrozenByOthers(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 32*mib, "ext4", nil)
	d.use()
	d.write("data")
	w.ok(exec.Command("fsfreeze", "--freeze", d.target).Run())
	t.Cleanup(func() { _ = exec.Command("fsfreeze", "--unfreeze", d.target).Run() })
	s := w.snapshot("s", d.id)
	if !d.frozen() {
		t.Error("thawed by a snapshot")
	}
	d.end()
	w.delete(s)
	w.empty()
}

// TestThawedDuringCopy: a copy during which another program has thawed the filesystem counts for nothing.
func TestThawedDuringCopy(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	d := w.create("v", 32*mib, "ext4", nil)
	d.use()
	w.ok(exec.Command("fsfreeze", "--freeze", d.target).Run())
	p := &pool{dir: w.pool}
	err := p.frozen(p.image(volumes, d.id), func() error {
		return exec.Command("fsfreeze", "--unfreeze", d.target).Run()
	})
	if !errors.Is(err, errBusy) || d.frozen() {
		t.Errorf("%v, frozen %t", err, d.frozen())
	}
	d.end()
	w.empty()
}

// frozen says whether the filesystem is.
func (d *disk) frozen() bool {
	thaw, err := mount.Freeze(d.target)
	if err == nil {
		d.ok(thaw())
	}
	return err != nil
}

// process is a driver of its own process for one node.
type process struct {
	*poolDriver
	cmd  *exec.Cmd
	said *bytes.Buffer
}

// run starts a process over the pool below dir and does not wait for it.
func run(t *testing.T, dir, node string, env ...string) *process {
	t.Helper()
	p := &process{poolDriver: &poolDriver{T: t, dir: dir, pool: filepath.Join(dir, "pool")}, said: &bytes.Buffer{}}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), append(env, "LOCAL_DRIVER_TEST="+dir, "LOCAL_DRIVER_TEST_NODE="+node)...)
	p.cmd.Stdout, p.cmd.Stderr = p.said, p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if len(env) > 0 {
		p.cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	}
	p.ok(p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.end(unix.SIGTERM)
		}
	})
	return p
}

// serving waits for it to answer.
func (p *process) serving(node string) *process {
	p.Helper()
	socket := filepath.Join(p.dir, node+".sock")
	awaitSocket(p.T, socket)
	p.dial(socket)
	return p
}

func (p *process) end(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal)
	_ = p.cmd.Wait()
}

// step is one call that a driver is killed in.
type step struct {
	name string
	call func(w *poolDriver) error
	// after is what must be true when a driver serves again.
	after func(w *poolDriver)
}

// TestKill kills drivers in the middle of each call that changes the pool. The next
// driver finds all or nothing of it, and the repeated call succeeds.
func TestKill(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	p := run(t, dir, "node").serving("node")
	original := p.create("original", 32*mib, "block", nil)
	original.use()
	original.write("data")
	original.rest()
	want := imageOf(p.poolDriver, volumes, original.id)
	size := int64(32 * mib)
	same := func(k kind, id string) func(w *poolDriver) {
		return func(w *poolDriver) {
			if _, err := os.Lstat(filepath.Join(w.pool, string(k), id)); err == nil && !bytes.Equal(imageOf(w, k, id), want) {
				w.Errorf("%s is there, but not whole", id)
			}
		}
	}
	create := func(name string, source *csipb.VolumeContentSource) func(w *poolDriver) error {
		return func(w *poolDriver) error {
			r := request(name, 32*mib, "block")
			r.VolumeContentSource = source
			_, err := w.c.CreateVolume(w.Context(), r)
			return err
		}
	}
	remove := func(id string) func(w *poolDriver) error { return func(w *poolDriver) error { return w.delete(id) } }
	nothing := func(*poolDriver) {}
	snapshot, clone, blank := snapshots.idOf("snapshot"), volumes.idOf("clone"), volumes.idOf("blank")
	rounds := []step{
		{"create", create("blank", nil), nothing},
		{"snapshot", func(w *poolDriver) error {
			_, err := w.c.CreateSnapshot(w.Context(),
				&csipb.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: original.id})
			return err
		}, same(snapshots, snapshot)},
		{"clone", create("clone", fromVolume(original.id)), same(volumes, clone)},
		{"restore", create("restored", fromSnapshot(snapshot)), same(volumes, volumes.idOf("restored"))},
		{"publish", func(w *poolDriver) error { return w.disk("blank", blank, "ext4").attach() }, nothing},
		{"stage", func(w *poolDriver) error { return w.disk("blank", blank, "ext4").stage() }, nothing},
		{"target", func(w *poolDriver) error { return w.disk("blank", blank, "ext4").publish(false) }, nothing},
		{"unpublish target", func(w *poolDriver) error { return w.disk("blank", blank, "ext4").unpublish() }, nothing},
		{"unstage", func(w *poolDriver) error { return w.disk("blank", blank, "ext4").unstage() }, nothing},
		{"unpublish", func(w *poolDriver) error { return w.disk("blank", blank, "ext4").detach() }, nothing},
		{"expand", func(w *poolDriver) error {
			size += mib
			_, err := w.c.ControllerExpandVolume(w.Context(),
				&csipb.ControllerExpandVolumeRequest{VolumeId: blank, CapacityRange: &csipb.CapacityRange{RequiredBytes: size}})
			return err
		}, nothing},
		{"delete", remove(blank), nothing},
		{"delete clone", remove(clone), same(volumes, clone)},
		{"delete snapshot", remove(snapshot), same(snapshots, snapshot)},
		{"delete restored", remove(volumes.idOf("restored")), nothing},
	}
	kills := 0
	for range 6 {
		size = 32 * mib
		for _, s := range rounds {
			p = p.killedIn(s, &kills)
		}
	}
	t.Logf("killed %d times before the answer", kills)
	if kills == 0 {
		t.Error("no driver was killed before its answer")
	}
	if !bytes.Equal(imageOf(p.poolDriver, volumes, original.id), want) {
		t.Error("the original has changed")
	}
	p.ok(p.delete(original.id))
	p.empty()
}

// killedIn makes a call, kills the driver somewhere in it, starts another one
// and repeats the call until it succeeds.
func (p *process) killedIn(s step, kills *int) *process {
	p.Helper()
	// A call that has not begun when the driver is killed would wait for the next
	// one, which comes when the call has ended.
	p.dial(filepath.Join(p.dir, "node.sock"), grpc.WaitForReady(false))
	began := time.AfterFunc(time.Duration(rand.Int64N(int64(20*time.Millisecond))), func() { _ = p.cmd.Process.Kill() })
	err := s.call(p.poolDriver)
	began.Stop()
	p.end(unix.SIGKILL)
	if status.Code(err) == codes.Unavailable {
		*kills++
	} else if err != nil {
		p.Errorf("%s: %v", s.name, err)
	}
	next := run(p.T, p.dir, "node").serving("node")
	for _, k := range []kind{volumes, snapshots, groups} {
		if left, _ := filepath.Glob(filepath.Join(p.pool, string(k), ".new-*")); len(left) > 0 {
			p.Errorf("%s: left after a start: %v", s.name, left)
		}
	}
	s.after(next.poolDriver)
	// A program that the killed driver has started may still run.
	eventually(p.T, s.name+" again", func() bool {
		err := s.call(next.poolDriver)
		if err != nil && status.Code(err) != codes.Aborted {
			p.Fatalf("%s again: %v", s.name, err)
		}
		return err == nil
	})
	s.after(next.poolDriver)
	return next
}

func imageOf(w *poolDriver, k kind, id string) []byte {
	w.Helper()
	data, err := os.ReadFile(filepath.Join(w.pool, string(k), id, "disk.img"))
	w.ok(err)
	return data
}
