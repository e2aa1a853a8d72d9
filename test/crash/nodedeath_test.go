package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/hosting/local"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/servers"
)

// parallelNodes is the number of nodes whose agents are killed at the same time.
const parallelNodes = 4

// content is the content of a file in the Pod's volume.
const content = "kept through every death"

// TestAgentIsKilled: a node agent with the bundled driver, a process of its own with real mounts, is killed
// before and after each of its calls and writes, and just after each change of its journal and of the mount
// table. The next agent completes the work: the Pod finds its file, or everything is unmounted.
func TestAgentIsKilled(t *testing.T) {
	c := newSharedPool(t)
	var hosts []*nodeWorld
	for i := range parallelNodes {
		hosts = append(hosts, c.newNode(fmt.Sprint("n", i+1)))
	}
	h := hosts[0]
	h.round(t, death{})
	all := deaths(h.effects(), h.round(t, death{}))
	t.Logf("%d deaths: %v", len(all), h.effects())
	if len(all) < 20 {
		t.Fatal("too few")
	}
	for lane, h := range hosts {
		t.Run(h.Node, func(t *testing.T) {
			t.Parallel()
			for i, d := range all {
				if i%parallelNodes == lane {
					h.round(t, d)
				}
			}
		})
	}
}

// death is the moment at which an agent is killed.
type death struct {
	// at and after are about its effects; journal and mounts are the change of
	// the journal, or of the mounts, after which it is killed.
	at, journal, mounts int
	after               bool
	// goes says that the Pod is deleted while the agent does not run.
	goes bool
}

// deaths returns all deaths. In every other one, the Pod is deleted while the agent is dead.
func deaths(effects []string, seen changes) []death {
	var out []death
	for at := 1; at <= len(effects); at++ {
		out = append(out, death{at: at, goes: at%2 == 0}, death{at: at, after: true, goes: at%2 == 1})
	}
	for n := 1; n <= seen.journal; n++ {
		out = append(out, death{journal: n, goes: n%2 == 0})
	}
	for n := 1; n <= seen.mounts; n++ {
		out = append(out, death{mounts: n, goes: n%2 == 1})
	}
	return out
}

// sharedPool is a control plane with a pool that nodes share.
type sharedPool struct {
	t      *testing.T
	dir    string
	server *apiserver.Server
	client kubernetes.Interface
}

func newSharedPool(t *testing.T) *sharedPool {
	t.Helper()
	dir, err := os.MkdirTemp("", "crash-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(dir)
		}
	})
	c := &sharedPool{t: t, dir: dir, server: servers.Borrow(t)}
	c.client = standalonetest.Client(t, c.server, "")
	_, err = c.client.StorageV1().CSIDrivers().Create(t.Context(),
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: volume.LocalDriver}}, metav1.CreateOptions{})
	c.must(err)
	_, err = c.client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: volume.LocalDriver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	c.must(err)
	c.controllers()
	return c
}

func (c *sharedPool) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *sharedPool) pool() string { return filepath.Join(c.dir, "pool") }

// controllers runs the control plane with a driver of its own over the pool.
func (c *sharedPool) controllers() {
	ctx, cancel := context.WithCancel(context.Background())
	log, socket := slog.New(slog.DiscardHandler), filepath.Join(c.dir, "ctl.sock")
	ended := make(chan error, 2)
	go func() {
		ended <- local.Serve(ctx, local.Options{NodeID: "ctl", PoolDir: c.pool(), Endpoint: socket, Log: log})
	}()
	c.eventually(func() string {
		if _, err := os.Stat(socket); err != nil {
			return err.Error()
		}
		return ""
	})
	d, err := csi.Dial(ctx, socket)
	c.must(err)
	drivers := csi.NewSet()
	drivers.Put(d)
	go func() {
		ended <- app.ControlPlane(ctx, app.ControlPlaneOptions{
			Drivers: drivers, Log: log,
			ConfigFor: func(role string) (*rest.Config, error) { return c.server.ClientConfig(app.User(role)), nil },
		}, func() {})
	}()
	c.t.Cleanup(func() {
		cancel()
		<-ended
		<-ended
		_ = d.Close()
	})
}

func (c *sharedPool) eventually(f func() string) { c.t.Helper(); eventually(c.t, f) }

func eventually(t *testing.T, f func() string) {
	t.Helper()
	testkit.Eventually(t, patience, f)
}

// nodeWorld is a node with its directory, and a claim whose volume has a file.
type nodeWorld struct {
	crashingAgent
	c *sharedPool
}

func (c *sharedPool) newNode(name string) *nodeWorld {
	h := &nodeWorld{c: c, crashingAgent: crashingAgent{
		Node: name, Dir: filepath.Join(c.dir, name), Pool: c.pool(), Kubeconfig: c.server.AdminKubeconfig(),
	}}
	c.must(os.Mkdir(h.Dir, 0o700))
	claim := plane.Claim(name, "64Mi")
	claim.Spec.StorageClassName = ptr.To(class)
	_, err := c.client.CoreV1().PersistentVolumeClaims(space).Create(c.t.Context(), claim, metav1.CreateOptions{})
	c.must(err)
	p := h.start(c.t, death{})
	h.pod(c.t)
	path := ""
	c.eventually(func() (missing string) {
		path, missing = h.mounted(c.t)
		return missing
	})
	c.must(os.WriteFile(filepath.Join(path, "f"), []byte(content), 0o600))
	h.remove(c.t)
	c.eventually(func() string { return h.left(c.t) })
	p.kill()
	return h
}

func (h *nodeWorld) pod(t *testing.T) {
	t.Helper()
	if _, err := h.c.client.CoreV1().Pods(space).Create(t.Context(), plane.Pod(h.Node, h.Node, h.Node),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (h *nodeWorld) remove(t *testing.T) {
	t.Helper()
	if err := h.c.client.CoreV1().Pods(space).Delete(t.Context(), h.Node, metav1.DeleteOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// mounted returns the path of the Pod's volume, or why it is not mounted.
func (h *nodeWorld) mounted(t *testing.T) (path, missing string) {
	pod, err := h.c.client.CoreV1().Pods(space).Get(t.Context(), h.Node, metav1.GetOptions{})
	if err != nil {
		return "", err.Error()
	}
	ok, text := plane.Mounted(pod)
	if !ok {
		return "", text
	}
	return cluster.MountPaths(pod)["data"], ""
}

// process is a process of an agent.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

func (h *nodeWorld) start(t *testing.T, d death) *process {
	t.Helper()
	a := crashingAgent{Node: h.Node, Dir: h.Dir, Pool: h.Pool, Kubeconfig: h.Kubeconfig, At: d.at, After: d.after}
	text, err := json.Marshal(&a)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(h.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := &process{cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), agentEnv+"="+string(text)), log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// round creates and deletes a Pod, with one death of the agent in between.
func (h *nodeWorld) round(t *testing.T, d death) (seen changes) {
	t.Helper()
	_ = os.Remove(h.diary())
	p := h.start(t, d)
	stop := h.watch(p, d)
	born := 1
	reach := func(what string, missing func() string) {
		t.Helper()
		eventually(t, func() string {
			select {
			case <-p.ended:
				if h.note("dead"); d.goes {
					h.remove(t)
				}
				p = h.start(t, death{})
				born++
			default:
			}
			if text := missing(); text != "" {
				return fmt.Sprintf("death %+v: %s: %s, see %s", d, what, text, h.Dir)
			}
			return ""
		})
	}
	h.pod(t)
	reach("pod is mounted", func() string {
		path, missing := h.mounted(t)
		if missing != "" {
			if d.goes && born > 1 {
				return ""
			}
			return missing
		}
		if got, err := os.ReadFile(filepath.Join(path, "f")); (err != nil || string(got) != content) &&
			(!d.goes || born == 1) {
			return fmt.Sprintf("the file holds %q, %v", got, err)
		}
		return ""
	})
	h.remove(t)
	reach("all is gone", func() string { return h.left(t) })
	p.kill()
	seen = stop()
	if born > 2 {
		t.Errorf("death %+v: %d lives, see %s", d, born, h.Dir)
	}
	h.nothingTwice(t, d)
	return seen
}

// left describes what is left of the Pod on the node and in the API.
func (h *nodeWorld) left(t *testing.T) string {
	if _, err := h.c.client.CoreV1().Pods(space).Get(t.Context(), h.Node,
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Sprint("the pod, ", err)
	}
	n, err := h.c.client.CoreV1().Nodes().Get(t.Context(), h.Node, metav1.GetOptions{})
	if err != nil || len(n.Status.VolumesInUse)+len(n.Status.VolumesAttached) > 0 {
		return fmt.Sprint("in use ", n.Status.VolumesInUse, ", attached ", n.Status.VolumesAttached, " ", err)
	}
	for _, pattern := range []string{"journal/*.json*", "pods/*", "plugins/kubernetes.io/csi/*/*"} {
		if files, _ := filepath.Glob(filepath.Join(h.root(), pattern)); len(files) > 0 {
			return fmt.Sprint(files)
		}
	}
	points, err := mount.Below(h.Dir)
	if err != nil || len(points) > 0 {
		return fmt.Sprint("mounts ", points, " ", err)
	}
	return h.loops(t)
}

// loops describes a loop device that is left for the claim's volume.
func (h *nodeWorld) loops(t *testing.T) string {
	claim, err := h.c.client.CoreV1().PersistentVolumeClaims(space).Get(t.Context(), h.Node, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	v, err := h.c.client.CoreV1().PersistentVolumes().Get(t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, b := range backing {
		if file, err := os.ReadFile(b); err == nil && strings.Contains(string(file), "/"+v.Spec.CSI.VolumeHandle) &&
			strings.HasPrefix(string(file), h.c.dir) {
			return "loop device over " + string(file)
		}
	}
	return ""
}

// effects returns the effects of the last round's agent.
func (h *nodeWorld) effects() []string {
	var out []string
	for _, line := range h.lines() {
		if name, ok := strings.CutPrefix(line, "begin "); ok {
			out = append(out, name)
		}
	}
	return out
}

func (h *nodeWorld) lines() []string {
	text, _ := os.ReadFile(h.diary())
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// nothingTwice reports calls that were repeated after the death although they were answered, and recorded
// before the next call began.
func (h *nodeWorld) nothingTwice(t *testing.T, d death) {
	t.Helper()
	lines := h.lines()
	dead := slices.Index(lines, "dead")
	if dead < 0 {
		return
	}
	last := -1
	for i, line := range lines[:dead] {
		if strings.HasPrefix(line, "begin Node") {
			last = i
		}
	}
	for _, line := range lines[:max(last, 0)] {
		name, ended := strings.CutPrefix(line, "end ")
		if ended && strings.HasPrefix(name, "Node") && slices.Contains(lines[dead:], "begin "+name) {
			t.Errorf("death %+v: %s was answered and is called again: %v", d, name, lines)
		}
	}
}
