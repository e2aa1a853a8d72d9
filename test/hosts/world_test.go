package hosts

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
)

// patience bounds each wait. A watch that has failed several times is tried again
// after pauses of up to a minute.
const patience = 4 * time.Minute

// world is a control plane and hosts that reach it over a network of their own.
type world struct {
	t      *testing.T
	ctx    context.Context
	dir    string
	array  *array
	plane  *plane.Plane
	flags  []string
	port   string
	client kubernetes.Interface
	hosts  map[string]*host
	// ends is how often the control plane was killed, lives how many other
	// volumes have come and gone.
	ends, lives int
}

// host is a network namespace, with a program in it: a node agent or controllers.
// It is joined to this one by a cable, one end here.
type host struct {
	name, cable string
	agent       *plane.Process
}

// newWorld is a control plane that reaches the array itself, and hosts.
func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	w := begin(t, names...)
	w.array.serve(t, "node1", filepath.Join(w.plane.Dir, "node"))
	for i, name := range names {
		w.connect(i, name)
		w.join(i, name)
	}
	for _, name := range append(names, "node1") {
		w.registered(name)
	}
	return w
}

// begin is a control plane that can be reached from hosts of these names.
func begin(t *testing.T, names ...string) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, ctx: t.Context(), dir: dir, hosts: map[string]*host{}}
	t.Cleanup(w.close)
	w.array = newArray(filepath.Join(dir, "array"))
	listen := plane.FreeAddress("0.0.0.0")
	_, w.port, err = net.SplitHostPort(listen)
	w.must(err)
	w.flags = []string{"--listen", listen}
	for i := range names {
		w.flags = append(w.flags, "--tls-san", address(i, 1))
	}
	w.up()
	return w
}

func address(network, end int) string { return fmt.Sprintf("10.213.%d.%d", network, end) }

// up starts the control plane, again after an end.
func (w *world) up() {
	w.t.Helper()
	var err error
	if w.plane, err = plane.Start(w.ctx, filepath.Join(w.dir, "plane"), w.flags...); err != nil {
		w.t.Fatal(err)
	}
	w.client, err = w.plane.Client()
	w.must(err)
}

// crash kills the control plane and starts it anew.
func (w *world) crash() {
	w.t.Helper()
	w.ends++
	w.plane.Kill()
	w.up()
}

// connect makes a host.
func (w *world) connect(i int, name string) {
	w.t.Helper()
	h := &host{name: name, cable: fmt.Sprint("vp-", name)}
	// What an interrupted run left has the names of this one, and may have a
	// program in it.
	_ = exec.Command("ip", "netns", "del", name).Run()
	_ = exec.Command("ip", "link", "del", h.cable).Run()
	w.ip("netns", "add", name)
	w.hosts[name] = h
	w.ip("link", "add", h.cable, "type", "veth", "peer", "name", "eth0", "netns", name)
	w.ip("address", "add", address(i, 1)+"/30", "dev", h.cable)
	w.ip("link", "set", h.cable, "up")
	w.ip("-n", name, "address", "add", address(i, 2)+"/30", "dev", "eth0")
	w.ip("-n", name, "link", "set", "eth0", "up")
	w.ip("-n", name, "link", "set", "lo", "up")
}

// join has a host's node agent join.
func (w *world) join(i int, name string) {
	w.t.Helper()
	config, err := w.plane.Invite(name, "--server", address(i, 1)+":"+w.port)
	w.must(err)
	root := w.root(name)
	w.array.serve(w.t, name, root)
	w.hosts[name].agent, err = plane.RunIn(name, filepath.Join(w.dir, name+".log"), "volplane", "node", "--join", config,
		"--root-dir", root, "--driver=false")
	w.must(err)
}

func (w *world) root(name string) string { return filepath.Join(w.dir, name) }

func (w *world) ip(args ...string) {
	w.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		w.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// cut pulls a host's cable, plug puts it back.
func (w *world) cut(name string)  { w.ip("link", "set", w.hosts[name].cable, "down") }
func (w *world) plug(name string) { w.ip("link", "set", w.hosts[name].cable, "up") }

func (w *world) close() {
	for name, h := range w.hosts {
		if h.agent != nil {
			h.agent.Stop()
		}
		_ = exec.Command("ip", "netns", "del", name).Run()
	}
	if w.plane != nil {
		w.plane.Stop()
	}
	if w.t.Failed() {
		w.t.Logf("kept %s", w.dir)
		return
	}
	_ = os.RemoveAll(w.dir)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// until asks again and again until nothing is missing. Errors of the API server,
// which may be down for the moment, count as something missing.
func (w *world) until(what string, missing func() (string, error)) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() string {
		text, err := missing()
		if text == "" && err == nil {
			return ""
		}
		return fmt.Sprintf("%s: %s %v; the array says %v", what, text, err, w.array.wrong)
	})
}

func (w *world) registered(name string) {
	w.t.Helper()
	w.until(name+" has the driver", func() (string, error) {
		n, err := w.client.StorageV1().CSINodes().Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, d := range n.Spec.Drivers {
			if d.Name == driverName {
				return "", nil
			}
		}
		return "not registered", nil
	})
}

// claim makes a claim of the array's class, and returns its volume.
func (w *world) claim(name string) (volume string) {
	w.t.Helper()
	_, err := w.client.StorageV1().StorageClasses().Create(w.ctx,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "array"}, Provisioner: driverName},
		metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		w.must(err)
	}
	c := plane.Claim(name, "1Gi")
	c.Spec.StorageClassName = ptr.To("array")
	_, err = w.client.CoreV1().PersistentVolumeClaims("default").Create(w.ctx, c, metav1.CreateOptions{})
	w.must(err)
	w.until("claim "+name+" is bound", func() (string, error) {
		c, err := w.client.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if volume = c.Spec.VolumeName; c.Status.Phase == corev1.ClaimBound {
			return "", nil
		}
		return string(c.Status.Phase), nil
	})
	return volume
}

func (w *world) pod(name, claim, node string) {
	w.t.Helper()
	w.until("make pod "+name, func() (string, error) {
		_, err := w.client.CoreV1().Pods("default").Create(w.ctx, plane.Pod(name, claim, node), metav1.CreateOptions{})
		return "", err
	})
}

func (w *world) mounted(name string) {
	w.t.Helper()
	w.until("pod "+name+" is mounted", func() (string, error) {
		pod, err := w.client.CoreV1().Pods("default").Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if ok, why := plane.Mounted(pod); !ok {
			return why, nil
		}
		return "", nil
	})
}

// remove deletes a Pod; by force it goes whatever its node says.
func (w *world) remove(name string, force bool) {
	w.t.Helper()
	o := metav1.DeleteOptions{}
	if force {
		o.GracePeriodSeconds = ptr.To[int64](0)
	}
	w.until("delete pod "+name, func() (string, error) {
		err := w.client.CoreV1().Pods("default").Delete(w.ctx, name, o)
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return "", err
	})
}

func (w *world) gone(name string) {
	w.t.Helper()
	w.until("pod "+name+" is gone", func() (string, error) {
		_, err := w.client.CoreV1().Pods("default").Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "still there", err
	})
}

// taint says of a host that it is out of service, or takes that back.
func (w *world) taint(name string, out bool) {
	w.t.Helper()
	taints := "null"
	if out {
		taints = `[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]`
	}
	_, err := w.client.CoreV1().Nodes().Patch(w.ctx, name, types.MergePatchType, []byte(`{"spec":{"taints":`+taints+`}}`),
		metav1.PatchOptions{})
	w.must(err)
}

// writes waits until a host has written to a volume again, refused until it was
// refused again.
func (w *world) writes(volume, host string) {
	w.t.Helper()
	before, _ := w.array.counts(volume, host)
	w.until(host+" writes", func() (string, error) {
		if now, _ := w.array.counts(volume, host); now > before {
			return "", nil
		}
		return "no write", nil
	})
}

func (w *world) refused(volume, host string) {
	w.t.Helper()
	_, before := w.array.counts(volume, host)
	w.until(host+" is refused", func() (string, error) {
		if _, now := w.array.counts(volume, host); now > before {
			return "", nil
		}
		return "no attempt", nil
	})
}

// has waits until just these hosts may write to a volume.
func (w *world) has(volume string, hosts ...string) {
	w.t.Helper()
	w.until(fmt.Sprint(hosts, " have the volume"), func() (string, error) {
		if now := w.array.holders(volume); strings.Join(now, " ") != strings.Join(hosts, " ") {
			return fmt.Sprint(now), nil
		}
		return "", nil
	})
}

// unmounted waits until a host has nothing mounted.
func (w *world) unmounted(name string) {
	w.t.Helper()
	w.until(name+" has unmounted", func() (string, error) {
		table, err := os.ReadFile("/proc/self/mountinfo")
		if strings.Contains(string(table), " "+w.root(name)+"/") {
			return "a mount is there", err
		}
		return "", err
	})
}
