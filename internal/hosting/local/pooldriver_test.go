package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/mount"
)

const mib = 1 << 20

// TestMain is the driver instead of the tests where a test has started this
// program as one.
func TestMain(m *testing.M) {
	dir := os.Getenv("LOCAL_DRIVER_TEST")
	if dir == "" {
		os.Exit(m.Run())
	}
	if err := child(dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// child serves the driver below dir until it is asked to stop.
func child(dir string) error {
	if os.Getenv("LOCAL_DRIVER_TEST_NO_LOOP") != "" {
		// In a mount namespace of its own no loop device is available.
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			return err
		}
		if err := letGo(); err != nil {
			return err
		}
		if err := unix.Mount("/dev/null", "/dev/loop-control", "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	node := os.Getenv("LOCAL_DRIVER_TEST_NODE")
	return Serve(ctx, Options{
		NodeID: node, PoolDir: filepath.Join(dir, "pool"), Endpoint: filepath.Join(dir, node+".sock"),
		Log: slog.New(slog.DiscardHandler),
	})
}

// letGo takes what others have mounted of loop devices out of a new mount
// namespace, where it would keep their devices busy when they have unmounted it.
func letGo() error {
	points, err := mount.Below("/")
	for i := len(points) - 1; i >= 0; i-- {
		if strings.HasPrefix(points[i].Source, "/dev/loop") {
			_ = unix.Unmount(points[i].Path, unix.MNT_DETACH)
		}
	}
	return err
}

// poolDriver is a driver over a pool of its own, and a client of it.
type poolDriver struct {
	*testing.T
	dir, pool string
	keep      int64
	c         csipb.ControllerClient
	g         csipb.GroupControllerClient
	n         csipb.NodeClient
	m         csipb.SnapshotMetadataClient
	stop      func()
}

// newPoolDriver serves a driver until the test ends. Then nothing of its volumes
// may be mounted or attached.
func newPoolDriver(t *testing.T) *poolDriver {
	t.Helper()
	dir := newDir(t)
	w := &poolDriver{T: t, dir: dir, pool: filepath.Join(dir, "pool")}
	w.start()
	return w
}

// newDir makes a directory with a name short enough for sockets, in which
// nothing may be mounted when the test ends.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "drv-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		checkNothingLeft(t, dir)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// checkNothingLeft reports mounts and loop devices below dir, and removes them.
func checkNothingLeft(t *testing.T, dir string) {
	t.Helper()
	points, err := mount.Below(dir)
	if err != nil {
		t.Error(err)
	}
	for i := len(points) - 1; i >= 0; i-- {
		t.Errorf("still mounted: %+v", points[i])
		_ = unix.Unmount(points[i].Path, unix.MNT_DETACH)
	}
	for device, file := range loops(t, dir) {
		t.Errorf("still attached: %s over %s", device, file)
		if f, err := os.Open(device); err == nil {
			_ = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
			_ = f.Close()
		}
	}
}

// loops returns the loop devices over files below dir.
func loops(t *testing.T, dir string) map[string]string {
	t.Helper()
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range all {
		file, err := os.ReadFile(name)
		if err == nil && strings.HasPrefix(string(file), dir+"/") {
			out["/dev/"+filepath.Base(filepath.Dir(filepath.Dir(name)))] = strings.TrimSpace(string(file))
		}
	}
	return out
}

func (w *poolDriver) start() {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	socket := filepath.Join(w.dir, "csi.sock")
	go func() {
		ended <- Serve(ctx, Options{
			NodeID: "node", PoolDir: w.pool, Keep: w.keep, Endpoint: socket, Log: slog.New(slog.DiscardHandler),
		})
	}()
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	}
	w.Cleanup(w.stop)
	awaitSocket(w.T, socket)
	w.dial(socket)
}

// restart stops the driver gracefully, and serves another one.
func (w *poolDriver) restart() {
	w.Helper()
	w.stop()
	w.start()
}

func awaitSocket(t *testing.T, path string) {
	t.Helper()
	eventually(t, "driver at "+path, func() bool {
		conn, err := net.Dial("unix", path)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// dial makes clients whose calls wait for a driver, unless the options say
// otherwise.
func (w *poolDriver) dial(socket string, opts ...grpc.CallOption) {
	w.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(append([]grpc.CallOption{grpc.WaitForReady(true)}, opts...)...))
	w.ok(err)
	w.Cleanup(func() { _ = conn.Close() })
	w.c, w.g, w.n = csipb.NewControllerClient(conn), csipb.NewGroupControllerClient(conn), csipb.NewNodeClient(conn)
	w.m = csipb.NewSnapshotMetadataClient(conn)
}

func (w *poolDriver) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// refused wants an error of that code whose message has all the words.
func (w *poolDriver) refused(what string, err error, code codes.Code, words ...string) {
	w.Helper()
	if status.Code(err) != code {
		w.Errorf("%s: %v, want %s", what, err, code)
		return
	}
	message := status.Convert(err).Message()
	if len(message) > 1500 {
		w.Errorf("%s: a message of %d bytes", what, len(message))
	}
	for _, word := range words {
		if !strings.Contains(message, word) {
			w.Errorf("%s: %q does not say %q", what, message, word)
		}
	}
}

// capability is that of a filesystem; of raw block if fsType is "block".
func capability(fsType string, options ...string) *csipb.VolumeCapability {
	c := &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
	if fsType == "block" {
		c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csipb.VolumeCapability_Mount{
			Mount: &csipb.VolumeCapability_MountVolume{FsType: fsType, MountFlags: options},
		}
	}
	return c
}

func request(name string, size int64, fsType string) *csipb.CreateVolumeRequest {
	return &csipb.CreateVolumeRequest{
		Name: name, CapacityRange: &csipb.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csipb.VolumeCapability{capability(fsType)},
	}
}

func fromVolume(id string) *csipb.VolumeContentSource {
	return &csipb.VolumeContentSource{
		Type: &csipb.VolumeContentSource_Volume{Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: id}},
	}
}

func fromSnapshot(id string) *csipb.VolumeContentSource {
	return &csipb.VolumeContentSource{
		Type: &csipb.VolumeContentSource_Snapshot{Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: id}},
	}
}

// disk is a volume and where it is used.
type disk struct {
	*poolDriver
	id, fsType, staging, target string
}

func (w *poolDriver) create(name string, size int64, fsType string, source *csipb.VolumeContentSource) *disk {
	w.Helper()
	r := request(name, size, fsType)
	r.VolumeContentSource = source
	v, err := w.c.CreateVolume(w.Context(), r)
	w.ok(err)
	return w.disk(name, v.GetVolume().GetVolumeId(), fsType)
}

func (w *poolDriver) disk(name, id, fsType string) *disk {
	d := &disk{w, id, fsType, filepath.Join(w.dir, name+"-staging"), filepath.Join(w.dir, name+"-target")}
	if err := os.Mkdir(d.staging, 0o700); err != nil && !os.IsExist(err) {
		w.Fatal(err)
	}
	return d
}

func (w *poolDriver) snapshot(name, id string) string {
	w.Helper()
	s, err := w.c.CreateSnapshot(w.Context(), &csipb.CreateSnapshotRequest{Name: name, SourceVolumeId: id})
	w.ok(err)
	return s.GetSnapshot().GetSnapshotId()
}

func (w *poolDriver) delete(id string) error {
	if strings.HasPrefix(id, "snap-") {
		_, err := w.c.DeleteSnapshot(w.Context(), &csipb.DeleteSnapshotRequest{SnapshotId: id})
		return err
	}
	_, err := w.c.DeleteVolume(w.Context(), &csipb.DeleteVolumeRequest{VolumeId: id})
	return err
}

func (d *disk) attach() error {
	_, err := d.c.ControllerPublishVolume(d.Context(),
		&csipb.ControllerPublishVolumeRequest{VolumeId: d.id, NodeId: "node", VolumeCapability: capability(d.fsType)})
	return err
}

func (d *disk) detach() error {
	_, err := d.c.ControllerUnpublishVolume(d.Context(),
		&csipb.ControllerUnpublishVolumeRequest{VolumeId: d.id, NodeId: "node"})
	return err
}

func (d *disk) stage(options ...string) error {
	_, err := d.n.NodeStageVolume(d.Context(), &csipb.NodeStageVolumeRequest{
		VolumeId: d.id, StagingTargetPath: d.staging, VolumeCapability: capability(d.fsType, options...),
	})
	return err
}

func (d *disk) unstage() error {
	_, err := d.n.NodeUnstageVolume(d.Context(),
		&csipb.NodeUnstageVolumeRequest{VolumeId: d.id, StagingTargetPath: d.staging})
	return err
}

func (d *disk) publish(readOnly bool) error {
	_, err := d.n.NodePublishVolume(d.Context(), &csipb.NodePublishVolumeRequest{
		VolumeId: d.id, StagingTargetPath: d.staging, TargetPath: d.target, VolumeCapability: capability(d.fsType),
		Readonly: readOnly,
	})
	return err
}

func (d *disk) unpublish() error {
	_, err := d.n.NodeUnpublishVolume(d.Context(), &csipb.NodeUnpublishVolumeRequest{VolumeId: d.id, TargetPath: d.target})
	return err
}

// use brings the volume to its target.
func (d *disk) use() {
	d.Helper()
	d.ok(d.attach())
	d.ok(d.stage())
	d.ok(d.publish(false))
}

// rest takes it back.
func (d *disk) rest() {
	d.Helper()
	d.ok(d.unpublish())
	d.ok(d.unstage())
	d.ok(d.detach())
}

// end takes it back and deletes it.
func (d *disk) end() {
	d.Helper()
	d.rest()
	d.ok(d.delete(d.id))
}

// expand grows the volume in the controller and, if it is in use, on the node.
func (d *disk) expand(size int64) {
	d.Helper()
	d.ok(insist(func() error {
		_, err := d.c.ControllerExpandVolume(d.Context(),
			&csipb.ControllerExpandVolumeRequest{VolumeId: d.id, CapacityRange: &csipb.CapacityRange{RequiredBytes: size}})
		return err
	}))
}

func (d *disk) nodeExpand() error {
	_, err := d.n.NodeExpandVolume(d.Context(), &csipb.NodeExpandVolumeRequest{
		VolumeId: d.id, VolumePath: d.target, StagingTargetPath: d.staging, VolumeCapability: capability(d.fsType),
	})
	return err
}

// blob is some data that follows from a word.
func blob(word string) []byte {
	sum := sha256.Sum256([]byte(word))
	return bytes.Repeat(sum[:], 4*mib/len(sum))
}

// write puts the data of a word into the volume and syncs it.
func (d *disk) write(word string) {
	d.Helper()
	path := d.target
	if d.fsType != "block" {
		path = filepath.Join(d.target, "data")
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	d.ok(err)
	_, err = f.WriteAt(blob(word), 0)
	d.ok(err)
	d.ok(f.Sync())
	d.ok(f.Close())
}

// holds wants the data of a word in the volume.
func (d *disk) holds(word string) {
	d.Helper()
	path := d.target
	if d.fsType != "block" {
		path = filepath.Join(d.target, "data")
	}
	f, err := os.Open(path)
	d.ok(err)
	defer f.Close()
	got := make([]byte, 4*mib)
	if _, err := f.ReadAt(got, 0); err != nil {
		d.Fatal(err)
	}
	if !bytes.Equal(got, blob(word)) {
		d.Errorf("%s does not hold %q", path, word)
	}
}

// size is how much the volume at the target is, filesystem or device.
func (d *disk) size() int64 {
	d.Helper()
	r, err := d.n.NodeGetVolumeStats(d.Context(), &csipb.NodeGetVolumeStatsRequest{VolumeId: d.id, VolumePath: d.target})
	d.ok(err)
	if d.fsType == "block" {
		size, err := mount.DeviceSize(d.target)
		d.ok(err)
		if size != r.GetUsage()[0].GetTotal() {
			d.Errorf("the device has %d bytes, the statistics say %d", size, r.GetUsage()[0].GetTotal())
		}
	}
	return r.GetUsage()[0].GetTotal()
}

// empty wants nothing in the pool but what a new one has.
func (w *poolDriver) empty() {
	w.Helper()
	for _, k := range []kind{volumes, snapshots, groups} {
		entries, err := os.ReadDir(filepath.Join(w.pool, string(k)))
		w.ok(err)
		for _, e := range entries {
			w.Errorf("left in the pool: %s/%s", k, e.Name())
		}
	}
}

// eventually polls until f is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := until(ctx, time.Minute, func() (bool, error) { return f(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
