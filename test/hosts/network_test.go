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
	"volplane.dev/volplane/test/internal/array"
	"volplane.dev/volplane/test/internal/plane"
)

// patience bounds each wait. The back-off of a watch that has failed several times is up to a minute.
const patience = 4 * time.Minute

// network is a control plane, and hosts that reach it over a network each.
type network struct {
	t     *testing.T
	ctx   context.Context
	dir   string
	array *array.Array
	plane *plane.Plane
	// flags are the control plane's flags, port is its port.
	flags  []string
	port   string
	client kubernetes.Interface
	hosts  map[string]*host
	// restarts is the number of times that the control plane was killed.
	restarts int
	// otherVolumes is the number of volumes that were created in addition to the volume of the test.
	otherVolumes int
}

// host is a network namespace with a program in it: a node agent or controllers.
type host struct {
	name string
	// cable is the end in this network namespace of the virtual cable to the host.
	cable string
	agent *plane.Process
}

// newNetwork starts a control plane that calls the array itself, and hosts with node agents.
func newNetwork(t *testing.T, names ...string) *network {
	t.Helper()
	w := startNetwork(t, names...)
	w.array.Serve(t, "node1", filepath.Join(w.plane.Dir, "node"))
	for _, name := range names {
		w.addHost(name)
		w.startAgent(name)
	}
	for _, name := range append(names, "node1") {
		w.waitForRegistration(name)
	}
	return w
}

// startNetwork starts a control plane whose certificate is valid at the addresses of these hosts.
func startNetwork(t *testing.T, names ...string) *network {
	t.Helper()
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		t.Fatal(err)
	}
	w := &network{t: t, ctx: t.Context(), dir: dir, hosts: map[string]*host{}}
	t.Cleanup(w.close)
	w.array = array.New(filepath.Join(dir, "array"))
	listen := plane.FreeAddress("0.0.0.0")
	_, w.port, err = net.SplitHostPort(listen)
	w.must(err)
	w.flags = []string{"--listen", listen}
	for _, name := range names {
		w.flags = append(w.flags, "--tls-san", address(name, 1))
	}
	w.startPlane()
	return w
}

// address returns the address of one end of a host's cable. The last letter of the host's name chooses
// the network, since those of several tests exist at the same time.
func address(host string, end int) string {
	return fmt.Sprintf("10.213.%d.%d", host[len(host)-1], end)
}

// startPlane starts the control plane, for the first time or after it ended.
func (w *network) startPlane() {
	w.t.Helper()
	var err error
	if w.plane, err = plane.Start(w.ctx, filepath.Join(w.dir, "plane"), w.flags...); err != nil {
		w.t.Fatal(err)
	}
	w.client, err = w.plane.Client()
	w.must(err)
}

// restartPlane kills the control plane and starts it again.
func (w *network) restartPlane() {
	w.t.Helper()
	w.restarts++
	w.plane.Kill()
	w.startPlane()
}

// addHost creates a host.
func (w *network) addHost(name string) {
	w.t.Helper()
	h := &host{name: name, cable: fmt.Sprint("vp-", name)}
	// An interrupted run has left a namespace and a cable with the same names.
	_ = exec.Command("ip", "netns", "del", name).Run()
	_ = exec.Command("ip", "link", "del", h.cable).Run()
	w.ip("netns", "add", name)
	w.hosts[name] = h
	w.ip("link", "add", h.cable, "type", "veth", "peer", "name", "eth0", "netns", name)
	w.ip("address", "add", address(name, 1)+"/30", "dev", h.cable)
	w.ip("link", "set", h.cable, "up")
	w.ip("-n", name, "address", "add", address(name, 2)+"/30", "dev", "eth0")
	w.ip("-n", name, "link", "set", "eth0", "up")
	w.ip("-n", name, "link", "set", "lo", "up")
}

// startAgent runs the node agent of a host.
func (w *network) startAgent(name string) {
	w.t.Helper()
	config, err := w.plane.Invite(name, "--server", address(name, 1)+":"+w.port)
	w.must(err)
	root := w.root(name)
	w.array.Serve(w.t, name, root)
	w.hosts[name].agent, err = plane.RunIn(name, filepath.Join(w.dir, name+".log"), "volplane", "node", "--join", config,
		"--root-dir", root, "--driver=false")
	w.must(err)
}

func (w *network) root(name string) string { return filepath.Join(w.dir, name) }

func (w *network) ip(args ...string) {
	w.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		w.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// disconnect removes a host from its network, and reconnect restores it.
func (w *network) disconnect(name string) { w.ip("link", "set", w.hosts[name].cable, "down") }
func (w *network) reconnect(name string)  { w.ip("link", "set", w.hosts[name].cable, "up") }

func (w *network) close() {
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

func (w *network) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// eventually waits until the function returns neither a text nor an error. The API server may be down at
// times, so errors are not final.
func (w *network) eventually(what string, missing func() (string, error)) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() string {
		text, err := missing()
		if text == "" && err == nil {
			return ""
		}
		return fmt.Sprintf("%s: %s %v; violations at the array: %v", what, text, err, w.array.Violations())
	})
}

// waitForRegistration waits until a node has registered the driver.
func (w *network) waitForRegistration(name string) {
	w.t.Helper()
	w.eventually("driver is registered at "+name, func() (string, error) {
		n, err := w.client.StorageV1().CSINodes().Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, d := range n.Spec.Drivers {
			if d.Name == array.Driver {
				return "", nil
			}
		}
		return "not registered", nil
	})
}

// createClaim creates a claim of the array's class, waits until it is bound, and returns its volume.
func (w *network) createClaim(name string) (volume string) {
	w.t.Helper()
	_, err := w.client.StorageV1().StorageClasses().Create(w.ctx,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "array"}, Provisioner: array.Driver},
		metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		w.must(err)
	}
	c := plane.Claim(name, "1Gi")
	c.Spec.StorageClassName = ptr.To("array")
	_, err = w.client.CoreV1().PersistentVolumeClaims("default").Create(w.ctx, c, metav1.CreateOptions{})
	w.must(err)
	w.eventually("claim "+name+" is bound", func() (string, error) {
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

// createPod creates a Pod that uses the claim.
func (w *network) createPod(name, claim, node string) {
	w.t.Helper()
	w.eventually("create pod "+name, func() (string, error) {
		_, err := w.client.CoreV1().Pods("default").Create(w.ctx, plane.Pod(name, claim, node), metav1.CreateOptions{})
		return "", err
	})
}

// waitForMount waits until all volumes of the Pod are mounted.
func (w *network) waitForMount(name string) {
	w.t.Helper()
	w.eventually("pod "+name+" is mounted", func() (string, error) {
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

// deletePod deletes a Pod. A forced deletion does not wait for the Pod's node.
func (w *network) deletePod(name string, force bool) {
	w.t.Helper()
	o := metav1.DeleteOptions{}
	if force {
		o.GracePeriodSeconds = ptr.To[int64](0)
	}
	w.eventually("delete pod "+name, func() (string, error) {
		err := w.client.CoreV1().Pods("default").Delete(w.ctx, name, o)
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return "", err
	})
}

// waitForDeletion waits until the Pod does not exist.
func (w *network) waitForDeletion(name string) {
	w.t.Helper()
	w.eventually("deletion of pod "+name, func() (string, error) {
		_, err := w.client.CoreV1().Pods("default").Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the pod exists", err
	})
}

// setOutOfService adds or removes the taint that declares a node out of service.
func (w *network) setOutOfService(name string, out bool) {
	w.t.Helper()
	taints := "null"
	if out {
		taints = `[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]`
	}
	_, err := w.client.CoreV1().Nodes().Patch(w.ctx, name, types.MergePatchType, []byte(`{"spec":{"taints":`+taints+`}}`),
		metav1.PatchOptions{})
	w.must(err)
}

// waitForWrite waits until a host has written to a volume again.
func (w *network) waitForWrite(volume, host string) {
	w.t.Helper()
	before, _ := w.array.Counts(volume, host)
	w.eventually("write by "+host, func() (string, error) {
		if now, _ := w.array.Counts(volume, host); now > before {
			return "", nil
		}
		return "no write", nil
	})
}

// waitForRefusedWrite waits until the array has refused another write of a host.
func (w *network) waitForRefusedWrite(volume, host string) {
	w.t.Helper()
	_, before := w.array.Counts(volume, host)
	w.eventually("refused write by "+host, func() (string, error) {
		if _, now := w.array.Counts(volume, host); now > before {
			return "", nil
		}
		return "no attempt", nil
	})
}

// waitForHolders waits until exactly these hosts may write to a volume.
func (w *network) waitForHolders(volume string, hosts ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprint("volume is published to ", hosts), func() (string, error) {
		if now := w.array.Holders(volume); strings.Join(now, " ") != strings.Join(hosts, " ") {
			return fmt.Sprint(now), nil
		}
		return "", nil
	})
}

// waitForUnmount waits until a host has no mounts.
func (w *network) waitForUnmount(name string) {
	w.t.Helper()
	w.eventually("unmount at "+name, func() (string, error) {
		table, err := os.ReadFile("/proc/self/mountinfo")
		if strings.Contains(string(table), " "+w.root(name)+"/") {
			return "a mount exists", err
		}
		return "", err
	})
}
