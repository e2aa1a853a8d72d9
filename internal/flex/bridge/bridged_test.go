package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/flex"
	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/testkit/logged"
)

const (
	nodeName = "n1"
	lofs     = "lofs.example.com"
	scratch  = "scratch.example.com"
	// patience bounds what must not hang.
	patience = time.Minute
	mib      = 1 << 20
)

// bridged is a host with two drivers, the examples, and a bridge that serves them.
type bridged struct {
	*testing.T
	// dir holds everything, but for the root directory, which has three parts.
	dir, root string
	config    decide.Config
	logged    *logged.Text
	bridge    *Bridge
	stop      func()
}

func newBridged(t *testing.T) *bridged {
	t.Helper()
	// Not t.TempDir: names of sockets are short, and the root has three parts.
	dir, err := os.MkdirTemp("/tmp", "fb-")
	if err != nil {
		t.Fatal(err)
	}
	w := &bridged{T: t, dir: dir, root: filepath.Join(dir, "root"), logged: &logged.Text{}, stop: func() {}}
	w.config.Drivers = map[string]decide.Settings{}
	for _, d := range []string{"on", "pods", "pool"} {
		w.ok(os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	t.Cleanup(w.clean)
	return w
}

// clean ends the bridge, and complains of what is left.
func (w *bridged) clean() {
	w.stop()
	points, err := mount.Below(w.dir)
	w.ok(err)
	for i := len(points) - 1; i >= 0; i-- {
		w.Errorf("left mounted: %s", points[i].Path)
		_ = unix.Unmount(points[i].Path, unix.MNT_DETACH)
	}
	images, _ := filepath.Glob(filepath.Join(w.dir, "pool/*.img"))
	if w.Failed() {
		w.Log(w.logged)
	}
	defer func() { w.ok(os.RemoveAll(w.dir)) }()
	for _, file := range images {
		defer func() { _ = mount.LoopDetach(file) }()
		w.givenBack(file)
	}
}

// givenBack waits until no device is left over a file: a process that scans all devices
// may keep one open for a moment.
func (w *bridged) givenBack(file string) {
	w.Helper()
	w.eventually(func() error {
		device, err := mount.LoopFind(file)
		if device != "" {
			return fmt.Errorf("left attached: %s over %s", device, file)
		}
		return err
	})
}

func (w *bridged) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// install puts an example driver in place, with two lines more: it writes down
// what it is called with, and first does what a file on/OPERATION says.
func (w *bridged) install(name string) {
	w.Helper()
	text, err := os.ReadFile(filepath.Join("../../../examples/flex", name, name))
	w.ok(err)
	hook := `printf '%s\n' "$*" >>` + w.calls() + "\n" + `if [ -e ` + w.dir + `/on/$op ]; then . ` + w.dir +
		"/on/$op; fi\ncase $op/$# in\n"
	out := strings.Replace(string(text), "case $op/$# in\n", hook, 1)
	out = strings.ReplaceAll(out, "/var/lib/"+name, filepath.Join(w.dir, "pool"))
	if !strings.Contains(out, hook) {
		w.Fatal("the driver has no place for the hook")
	}
	w.write(name, out)
}

// write puts an executable in place in one step.
func (w *bridged) write(name, text string) {
	w.Helper()
	dir := filepath.Join(w.dir, "plugins", "example.com~"+name)
	w.ok(os.MkdirAll(dir, 0o755))
	draft := filepath.Join(w.dir, "draft")
	w.ok(os.WriteFile(draft, []byte(text), 0o755))
	w.ok(os.Rename(draft, filepath.Join(dir, name)))
}

// on has a driver do something at each call of an operation; "" ends that.
func (w *bridged) on(op, script string) {
	w.Helper()
	path := filepath.Join(w.dir, "on", op)
	if script == "" {
		w.ok(os.Remove(path))
		return
	}
	w.ok(os.WriteFile(path+".new", []byte(script), 0o600))
	w.ok(os.Rename(path+".new", path))
}

func (w *bridged) calls() string { return filepath.Join(w.dir, "calls") }

// called returns the operations so far, without init, and forgets them.
func (w *bridged) called() []string {
	w.Helper()
	data, err := os.ReadFile(w.calls())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Fatal(err)
	}
	w.ok(os.WriteFile(w.calls(), nil, 0o600))
	var out []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "init" {
			out = append(out, line)
		}
	}
	return out
}

// run begins a life of host and bridge, and returns a way to each driver.
func (w *bridged) run(drivers ...string) []*csi.Driver {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	log := slog.New(slog.NewTextHandler(w.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	host := &host.Host{
		Dir: filepath.Join(w.dir, "plugins"), StateDir: filepath.Join(w.root, "state"), Log: log,
		Options: func(n decide.Name) flex.Options { return flex.Options{Settings: w.config.Of(n)} },
	}
	b, err := Open(Options{
		Host: host, Node: nodeName, RootDir: w.root, SocketDir: filepath.Join(w.dir, "s"),
		RegistryDir: filepath.Join(w.dir, "r"),
		Config:      w.config, Log: log,
	})
	w.ok(err)
	var running sync.WaitGroup
	running.Go(func() { _ = host.Run(ctx) })
	running.Go(func() { _ = b.Run(ctx) })
	w.bridge = b
	w.stop = func() {
		cancel()
		running.Wait()
		b.calls.running.Wait()
		w.stop = func() {}
		w.ok(b.Close())
	}
	var out []*csi.Driver
	for _, d := range drivers {
		out = append(out, w.dial(d))
	}
	return out
}

func (w *bridged) socket(driver string) string { return filepath.Join(w.dir, "s", driver, "csi.sock") }

// dial waits for a driver to be served.
func (w *bridged) dial(driver string) *csi.Driver {
	w.Helper()
	var out *csi.Driver
	w.eventually(func() error {
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		d, err := csi.Dial(ctx, w.socket(driver))
		out = d
		return err
	})
	w.Cleanup(func() { _ = out.Close() })
	return out
}

// eventually tries until it works.
func (w *bridged) eventually(try func() error) {
	w.Helper()
	testkit.Eventually(w, patience, func() string {
		if err := try(); err != nil {
			return fmt.Sprintf("%v\n%s", err, w.logged)
		}
		return ""
	})
}

// refused wants an error of a code whose message has all the words.
func (w *bridged) refused(what string, err error, code codes.Code, words ...string) {
	w.Helper()
	if csi.Code(err) != code {
		w.Errorf("%s: %v, want code %v", what, err, code)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			w.Errorf("%s: %v: there is no %q in it", what, err, word)
		}
	}
}

// volumeOf is one volume of a driver, as its callers use it.
type volumeOf struct {
	*bridged
	d               *csi.Driver
	id              string
	staging, target string
	context         map[string]string
	published       map[string]string
	secrets         map[string]string
	group, fsType   string
	readOnly        bool
}

// volume returns a volume with options, at paths of a kubelet's shape.
func (w *bridged) volume(d *csi.Driver, id string, options map[string]string) *volumeOf {
	w.Helper()
	v := &volumeOf{
		bridged: w, d: d, id: id, staging: filepath.Join(w.dir, "globalmount-"+id),
		target: filepath.Join(w.dir, "pods/uid-1/volumes/kubernetes.io~csi", id, "mount"), context: options, fsType: "ext4",
	}
	w.ok(os.MkdirAll(v.staging, 0o750))
	w.ok(os.MkdirAll(filepath.Dir(v.target), 0o750))
	return v
}

func (v *volumeOf) capability() *csipb.VolumeCapability {
	c := csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, v.fsType, nil)
	c.GetMount().VolumeMountGroup = v.group
	return c
}

func (v *volumeOf) attach() error {
	r, err := v.d.ControllerClient().ControllerPublishVolume(v.Context(), &csipb.ControllerPublishVolumeRequest{
		VolumeId: v.id, NodeId: nodeName, VolumeCapability: v.capability(), VolumeContext: v.context, Readonly: v.readOnly,
	})
	v.published = r.GetPublishContext()
	return err
}

func (v *volumeOf) detach() error {
	_, err := v.d.ControllerClient().ControllerUnpublishVolume(v.Context(),
		&csipb.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: nodeName})
	return err
}

func (v *volumeOf) stage() error {
	_, err := v.d.NodeClient().NodeStageVolume(v.Context(), &csipb.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.capability(), VolumeContext: v.context,
		PublishContext: v.published,
	})
	return err
}

func (v *volumeOf) unstage() error {
	_, err := v.d.NodeClient().NodeUnstageVolume(v.Context(),
		&csipb.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	return err
}

func (v *volumeOf) publish() error { return v.publishWithin(v.Context()) }

func (v *volumeOf) publishWithin(ctx context.Context) error {
	_, err := v.d.NodeClient().NodePublishVolume(ctx, &csipb.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: v.target, VolumeCapability: v.capability(),
		VolumeContext:  v.context,
		PublishContext: v.published, Secrets: v.secrets, Readonly: v.readOnly,
	})
	return err
}

func (v *volumeOf) unpublish() error {
	_, err := v.d.NodeClient().NodeUnpublishVolume(v.Context(),
		&csipb.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target})
	return err
}

// forward attaches and mounts a volume up to its target, back undoes that.
func (v *volumeOf) forward() {
	v.Helper()
	v.ok(v.attach())
	v.ok(v.stage())
	v.ok(v.publish())
}

func (v *volumeOf) back() {
	v.Helper()
	v.ok(v.unpublish())
	v.ok(v.unstage())
	v.ok(v.detach())
}

// empty wants nothing left of any volume: no mount, no record, no directory.
func (w *bridged) empty() {
	w.Helper()
	points, err := mount.Below(w.dir)
	w.ok(err)
	for _, p := range points {
		w.Errorf("mounted: %s", p.Path)
	}
	for _, pattern := range []string{"state/volumes/*/*/*", "pods/*", "plugins/*"} {
		left, err := filepath.Glob(filepath.Join(w.root, pattern))
		w.ok(err)
		for _, path := range left {
			w.Errorf("left: %s", path)
		}
	}
}
