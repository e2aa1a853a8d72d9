package planes

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/standalonetest"
	"volplane.dev/volplane/test/internal/plane"
)

func TestMain(m *testing.M) { standalonetest.Main(m) }

// patience bounds each wait: a lease of a control plane that was killed is waited for, on a busy machine.
const patience = 4 * time.Minute

// controlPlanes are an etcd of three members, and control planes that have their objects there.
type controlPlanes struct {
	t       *testing.T
	dir     string
	members *standalonetest.Members
	planes  map[string]*plane.Plane
	clients map[string]kubernetes.Interface
	// joins are the flags of those that were invited.
	joins map[string][]string
	// network is the prefix of the control planes' addresses, and port is their port, 0 means any.
	network, port string
	// under begins the command of a control plane that does not run on this host.
	under map[string][]string
}

// newControlPlanes starts control planes with these names. The first one is the first of the cluster.
func newControlPlanes(t *testing.T, names ...string) *controlPlanes {
	t.Helper()
	return newControlPlanesAt(t, "127.0.0.", names...)
}

// newControlPlanesAt is newControlPlanes at addresses of the loopback interface that begin with a network's.
func newControlPlanesAt(t *testing.T, network string, names ...string) *controlPlanes {
	t.Helper()
	w := newEtcd(t, standalonetest.StartMembers(t, 3))
	w.network = network
	w.startAll(names)
	return w
}

// newEtcd returns an etcd without control planes.
func newEtcd(t *testing.T, members *standalonetest.Members) *controlPlanes {
	t.Helper()
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		t.Fatal(err)
	}
	w := &controlPlanes{
		t: t, dir: dir, members: members, planes: map[string]*plane.Plane{}, clients: map[string]kubernetes.Interface{},
		joins: map[string][]string{}, port: "0", under: map[string][]string{},
	}
	t.Cleanup(w.close)
	return w
}

// startAll starts control planes for the first time, one of which invites the others.
func (w *controlPlanes) startAll(names []string) {
	w.t.Helper()
	for i, name := range names {
		if i > 0 {
			w.invite(names[0], name)
		}
		w.start(name)
		w.eventually("node "+name+" has the driver", func() error {
			_, err := w.driverOf(names[0], name)
			return err
		})
	}
}

func (w *controlPlanes) close() {
	for _, p := range w.planes {
		p.Stop()
	}
	if w.t.Failed() {
		w.t.Logf("kept %s", w.dir)
		return
	}
	_ = plane.UnmountBelow(w.dir)
	_ = os.RemoveAll(w.dir)
}

func (w *controlPlanes) dirOf(name string) string { return filepath.Join(w.dir, name) }

// invite makes a control plane invite another one.
func (w *controlPlanes) invite(by, name string) {
	w.t.Helper()
	file, err := w.planes[by].Invite(name, "--control-plane")
	if err != nil {
		w.t.Fatal(err)
	}
	w.joins[name] = []string{"--join", file}
}

// copyKeys gives a control plane the keys of another one.
func (w *controlPlanes) copyKeys(from, to string) {
	w.t.Helper()
	if err := os.CopyFS(filepath.Join(w.dirOf(to), "pki"), os.DirFS(filepath.Join(w.dirOf(from), "pki"))); err != nil {
		w.t.Fatal(err)
	}
}

func (w *controlPlanes) flags(name string) []string {
	return slices.Concat([]string{"--name", name, "--listen", w.network + name[1:] + ":" + w.port}, w.storeFlags(),
		w.joins[name])
}

// storeFlags are the flags that name the etcd.
func (w *controlPlanes) storeFlags() []string {
	o := w.members.Options
	return []string{
		"--etcd-servers", strings.Join(o.Servers, ","), "--etcd-prefix", o.Prefix,
		"--etcd-cafile", o.CAFile, "--etcd-certfile", o.CertFile, "--etcd-keyfile", o.KeyFile,
	}
}

// start starts a control plane, for the first time or again. Like its systemd unit, it restarts one that gives up
// because the store does not respond in time.
func (w *controlPlanes) start(name string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	p, err := plane.StartUnder(ctx, w.under[name], w.dirOf(name), w.flags(name)...)
	for err != nil && w.planes[name] != nil && ctx.Err() == nil {
		w.t.Logf("%s has not started, and is started again: %v", name, err)
		w.pause(time.Second)
		p, err = plane.StartUnder(ctx, w.under[name], w.dirOf(name), w.flags(name)...)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.planes[name] = p
	if w.clients[name], err = p.Client(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *controlPlanes) eventually(what string, missing func() error) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() string {
		if err := missing(); err != nil {
			return fmt.Sprintf("%s: %v", what, err)
		}
		return ""
	})
}

func (w *controlPlanes) driverOf(by, node string) (id string, err error) {
	n, err := w.clients[by].StorageV1().CSINodes().Get(w.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, d := range n.Spec.Drivers {
		if d.Name == volume.LocalDriver {
			return d.NodeID, nil
		}
	}
	return "", fmt.Errorf("node %s has no driver yet", node)
}

// leader returns the name of the control plane that runs the controllers of the cluster, according to another one.
func (w *controlPlanes) leader(by string) (string, error) {
	return plane.Leader(w.t.Context(), w.clients[by], maps.Keys(w.planes))
}

// mount creates a claim, and a Pod with it on a node, and waits until it is mounted. by is the control plane whose API
// is used.
func (w *controlPlanes) mount(by, name, node string) {
	w.t.Helper()
	w.use(by, plane.Claim(name, "8Mi"), node)
}

// use is mount with a claim. It returns the path at which it is mounted.
func (w *controlPlanes) use(by string, claim *corev1.PersistentVolumeClaim, node string) (path string) {
	w.t.Helper()
	name := claim.Name
	w.create(by, claim)
	w.eventually("create pod "+name, func() error {
		_, err := w.clients[by].CoreV1().Pods("default").Create(w.t.Context(), plane.Pod(name, name, node),
			metav1.CreateOptions{})
		return ignoreExists(err)
	})
	w.eventually("pod "+name+" is mounted", func() error {
		pod, err := w.clients[by].CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ok, why := plane.Mounted(pod); !ok {
			return fmt.Errorf("not mounted: %s", why)
		}
		path = cluster.MountPaths(pod)["data"]
		return nil
	})
	return path
}

func (w *controlPlanes) create(by string, c *corev1.PersistentVolumeClaim) {
	w.t.Helper()
	w.eventually("create claim "+c.Name, func() error {
		_, err := w.clients[by].CoreV1().PersistentVolumeClaims("default").Create(w.t.Context(), c, metav1.CreateOptions{})
		return ignoreExists(err)
	})
}

// bound waits until a claim is bound, and returns its volume.
func (w *controlPlanes) bound(by, name string) (volume *corev1.PersistentVolume) {
	w.t.Helper()
	w.eventually("claim "+name+" is bound", func() error {
		c, err := w.clients[by].CoreV1().PersistentVolumeClaims("default").Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("it is %s", c.Status.Phase)
		}
		volume, err = w.clients[by].CoreV1().PersistentVolumes().Get(w.t.Context(), c.Spec.VolumeName, metav1.GetOptions{})
		return err
	})
	return volume
}

// delete deletes the Pod and the claim with a name, and waits until the claim is gone.
func (w *controlPlanes) delete(by, name string) {
	w.t.Helper()
	w.eventually("delete "+name, func() error {
		ctx, core := w.t.Context(), w.clients[by].CoreV1()
		if err := core.Pods("default").Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) && err != nil {
			return err
		}
		if err := core.PersistentVolumeClaims("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}
		return fmt.Errorf("it is being deleted")
	})
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// immediate creates a class whose volumes are created without a Pod, and so for no node.
func (w *controlPlanes) immediate(by string) {
	w.t.Helper()
	_, err := w.clients[by].StorageV1().StorageClasses().Create(w.t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "immediate"}, Provisioner: volume.LocalDriver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),
	}, metav1.CreateOptions{})
	if ignoreExists(err) != nil {
		w.t.Fatal(err)
	}
}

// immediateClaim returns a claim of that class.
func immediateClaim(name string) *corev1.PersistentVolumeClaim {
	c := plane.Claim(name, "8Mi")
	c.Spec.StorageClassName = ptr.To("immediate")
	return c
}

// nothingLeft waits until there is nothing of volumes in the API, at the drivers and on the hosts.
func (w *controlPlanes) nothingLeft(by string) {
	w.t.Helper()
	w.eventually("everything is gone", func() error { return w.onlyLeft(by, nil) })
}

// onlyLeft returns an error unless these are all objects and remains of volumes in the API, at the drivers and on the
// hosts.
func (w *controlPlanes) onlyLeft(by string, want []string) error {
	now, err := w.leftovers(by)
	if err != nil {
		return err
	}
	without := func(all, others []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(one string) bool { return slices.Contains(others, one) })
	}
	more, missing := without(now, want), without(want, now)
	if len(more)+len(missing) > 0 {
		return fmt.Errorf("there is %q, and not %q", more, missing)
	}
	return nil
}

// leftovers names all objects and remains of volumes in the API, at the drivers and on the hosts.
func (w *controlPlanes) leftovers(by string) ([]string, error) {
	all, err := plane.Objects(w.t.Context(), w.clients[by])
	if err != nil {
		return nil, err
	}
	for _, p := range w.planes {
		there, err := p.OnHost()
		if err != nil {
			return nil, err
		}
		all = append(all, there...)
	}
	return all, nil
}
