package exchange

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestVendors takes manifests in which only the names of images were changed. Each container of a sidecar is started
// under that name, with its arguments, environment and account, as a real Pod of the workload has them. All are
// healthy, and a volume lives and dies with no other rights than those of the manifests. There are manifests in
// testdata/vendors; `make vendors` also plays rendered third-party charts below $MANIFESTS, one driver per file.
func TestVendors(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "vendors", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal("there are no manifests: ", err)
	}
	if of := os.Getenv("MANIFESTS"); of != "" {
		others, err := filepath.Glob(filepath.Join(of, "*.yaml"))
		if err != nil || len(others) == 0 {
			t.Fatal("there are no manifests in ", of, ": ", err)
		}
		files = append(files, others...)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			v := newVendor(t, oneSed(t, string(text)))
			v.startAll()
			v.healthy()
			v.lives()
			v.refusals()
		})
	}
}

// vendor is a cluster with a driver as its vendor installs it.
type vendor struct {
	*cluster.Installation
	driver *csitest.Driver
	log    string
	// has are the accounts of the sidecars by their names, and addresses the addresses that must respond.
	has       map[string]string
	addresses []string
}

func newVendor(t *testing.T, manifests string) *vendor {
	t.Helper()
	c, log := cluster.AuditedCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	t.Cleanup(cancel)
	c.Controllers(t, "persistentvolume-binder-controller", "persistentvolume-attach-detach-controller",
		"persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller", "deployment-controller",
		"replicaset-controller", "statefulset-controller", "daemonset-controller")
	v := &vendor{
		Installation: &cluster.Installation{Cluster: c, T: t, Ctx: ctx, Base: "vendor", Space: "default"}, log: log,
		has: map[string]string{},
	}
	c.ServeSnapshots(ctx, t)
	for _, found := range regexp.MustCompile(`(?m)^  namespace: "?([\w-]+)`).FindAllStringSubmatch(manifests, -1) {
		if v.Space = found[1]; v.Space == metav1.NamespaceDefault {
			continue
		}
		_, err := c.Client.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v.Space}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			v.Must(err)
		}
		_, err = c.Client.CoreV1().ServiceAccounts(v.Space).Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			v.Must(err)
		}
	}
	// The API server warns of some that vendors have.
	t.Log(c.KubectlSays(ctx, t, manifests, "apply", "-f", "-"))
	all, err := c.Client.StorageV1().CSIDrivers().List(ctx, metav1.ListOptions{})
	v.Must(err)
	if len(all.Items) != 1 {
		t.Fatalf("the manifests have %d drivers", len(all.Items))
	}
	config := csitest.Full()
	config.Name, config.NodeID = all.Items[0].Name, "id-n1"
	config.Controller.Snapshot, config.Controller.ListSnapshots, config.Node.Expand = true, true, false
	config.Controller.PublishUnpublish = *all.Items[0].Spec.AttachRequired
	v.driver = csitest.Start(t, config)
	v.CreateObjects(config.Name)
	c.Kubectl(ctx, t, "", "label", "node/n1", corev1.LabelOSStable+"=linux")
	return v
}

// startAll starts the sidecars of all Pods, once those exist.
func (v *vendor) startAll() {
	v.T.Helper()
	var pods []corev1.Pod
	upstream.Eventually(v.Ctx, v.T, func() string {
		all, err := v.Client.CoreV1().Pods(v.Space).List(v.Ctx, metav1.ListOptions{})
		v.Must(err)
		daemons, err := v.Client.AppsV1().DaemonSets(v.Space).List(v.Ctx, metav1.ListOptions{})
		v.Must(err)
		deployments, err := v.Client.AppsV1().Deployments(v.Space).List(v.Ctx, metav1.ListOptions{})
		v.Must(err)
		sets, err := v.Client.AppsV1().StatefulSets(v.Space).List(v.Ctx, metav1.ListOptions{})
		v.Must(err)
		want := len(daemons.Items) + len(deployments.Items) + len(sets.Items)
		if pods = all.Items; len(pods) < want {
			return fmt.Sprintf("%d Pods of %d workloads", len(pods), want)
		}
		return ""
	})
	workloads := map[string]bool{}
	for _, p := range pods {
		if workload := p.Spec.Containers[0].Name + p.Spec.ServiceAccountName; !workloads[workload] {
			workloads[workload] = true
			for _, c := range p.Spec.Containers {
				v.start(&p, c)
			}
		}
	}
}

// start starts a container, if it is one of a sidecar.
func (v *vendor) start(p *corev1.Pod, c corev1.Container) {
	v.T.Helper()
	words := append(slices.Clone(c.Command), c.Args...)
	if len(c.Command) == 0 {
		name, _, _ := strings.Cut(path.Base(c.Image), ":")
		words = slices.Insert(words, 0, name)
	}
	role, is := sidecar.RoleOf(words[0])
	if !is {
		return
	}
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
			v.T.Setenv(e.Name, e.Value)
		case e.ValueFrom.FieldRef != nil:
			v.T.Setenv(e.Name, map[string]string{
				"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": "n1",
			}[e.ValueFrom.FieldRef.FieldPath])
		}
	}
	for i, w := range words {
		words[i] = os.Expand(strings.NewReplacer("$(", "${", ")", "}").Replace(w), os.Getenv)
	}
	v.run(role, p.Spec.ServiceAccountName, words)
}

// run starts a sidecar with its own arguments, but at the addresses of this machine.
func (v *vendor) run(role sidecar.Role, account string, words []string) {
	v.T.Helper()
	o, without, err := role.Parse(words[0], words[1:], os.Getenv)
	v.Must(err)
	v.T.Logf("%q as %s; without effect: %q", words, account, without)
	args := append([]string{role.String()}, words[1:]...)
	address := plane.FreeAddress("127.0.0.1")
	if role != sidecar.SnapshotController {
		args = append(args, "--csi-address="+v.driver.Socket)
	}
	args = slices.DeleteFunc(args, func(a string) bool { return strings.Contains(a, "-health-port=") })
	switch role {
	case sidecar.Liveness:
		args, v.addresses = append(args, "--http-endpoint="+address), append(v.addresses, address+"/healthz")
	case sidecar.Registrar:
		args = append(args, "--plugin-registration-path="+v.T.TempDir(), "--http-endpoint="+address)
		v.addresses = append(v.addresses, address+"/healthz")
	default:
		args = append(args, "--kubeconfig="+v.Identity(account))
		for _, at := range o.HTTP {
			args = append(args, "--http-endpoint="+address)
			v.addresses = append(v.addresses, address+at.MetricsPath)
			if at.LeaderHealth {
				v.addresses = append(v.addresses, address+"/healthz/leader-election")
			}
		}
		v.has[role.String()] = account
	}
	upstream.Start(v.T, "volplane", args...)
}

// healthy waits until all addresses answer.
func (v *vendor) healthy() {
	v.T.Helper()
	for _, a := range v.addresses {
		upstream.Eventually(v.Ctx, v.T, func() string {
			got, err := http.Get("http://" + a) //nolint:noctx // of this machine
			if err != nil {
				return err.Error()
			}
			defer func() { _ = got.Body.Close() }()
			if body, err := io.ReadAll(got.Body); got.StatusCode != http.StatusOK {
				return fmt.Sprintf("%s answers %s %s %v", a, got.Status, body, err)
			}
			return ""
		})
	}
}

// lives plays the life of a volume, as far as there is a sidecar for each part.
func (v *vendor) lives() {
	v.T.Helper()
	wait := func(object, what string) {
		v.T.Helper()
		v.Kubectl(v.Ctx, v.T, "", "wait", object, "--namespace=default", "--for="+what, "--timeout=1m")
	}
	v.Kubectl(v.Ctx, v.T, strings.ReplaceAll(vendorsClass, "DRIVER", v.driver.Name()), "apply", "-f", "-")
	_, err := v.Client.CoreV1().PersistentVolumeClaims("default").Create(v.Ctx, upstream.ClaimOf("c", "plain"),
		metav1.CreateOptions{})
	v.Must(err)
	wait("pvc/c", "jsonpath={.status.phase}=Bound")
	if v.has["csi-attacher"] != "" {
		v.Uses("p", "c")
		v.Attachments(1)
	}
	if v.has["csi-resizer"] != "" {
		v.Kubectl(v.Ctx, v.T, "", "patch", "pvc/c", "--namespace=default",
			`--patch={"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
		wait("pvc/c", "jsonpath={.status.capacity.storage}=2Gi")
	}
	if v.has["csi-snapshotter"] != "" {
		if v.has["snapshot-controller"] == "" {
			upstream.Start(v.T, "volplane", "snapshot-controller", "--kubeconfig="+v.AdminKubeconfig())
		}
		v.Kubectl(v.Ctx, v.T, strings.ReplaceAll(vendorsSnapshot, "DRIVER", v.driver.Name()), "apply", "-f", "-")
		wait("volumesnapshot/s", "jsonpath={.status.readyToUse}=true")
		v.Kubectl(v.Ctx, v.T, vendorsRestored, "apply", "-f", "-")
		wait("pvc/r", "jsonpath={.status.phase}=Bound")
		v.Kubectl(v.Ctx, v.T, "", "delete", "volumesnapshot/s", "pvc/r", "--namespace=default", "--timeout=1m")
	}
	if v.has["csi-attacher"] != "" {
		now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
		v.Must(v.Client.CoreV1().Pods("default").Delete(v.Ctx, "p", now))
		v.Attachments(0)
	}
	v.Kubectl(v.Ctx, v.T, "", "delete", "pvc/c", "--namespace=default", "--timeout=1m")
	upstream.Eventually(v.Ctx, v.T, func() string {
		all, err := v.Client.CoreV1().PersistentVolumes().List(v.Ctx, metav1.ListOptions{})
		if err != nil || len(all.Items)+len(v.driver.Volumes()) > 0 {
			return fmt.Sprintf("%d volumes are left, %d at the driver: %v", len(all.Items), len(v.driver.Volumes()), err)
		}
		return ""
	})
}

// refusals reports which rights the sidecars work without. Each must have used its own account.
func (v *vendor) refusals() {
	v.T.Helper()
	accounts, may := map[string]bool{}, map[string]int{}
	for name, account := range v.has {
		accounts[account] = true
		if len(v.Audited(v.log, account)) == 0 {
			v.T.Errorf("%s has asked for nothing", name)
		}
	}
	for account := range accounts {
		for _, r := range v.Audited(v.log, account) {
			if r.ResponseStatus.Code == http.StatusForbidden {
				may[strings.Join([]string{account, r.Verb, r.ObjectRef.Resource, r.ObjectRef.Namespace}, " ")]++
			}
		}
	}
	v.T.Log("refused: ", may)
}

const vendorsClass = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: plain}
provisioner: DRIVER
allowVolumeExpansion: true
`

const vendorsSnapshot = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: shots}
driver: DRIVER
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: s, namespace: default}
spec: {volumeSnapshotClassName: shots, source: {persistentVolumeClaimName: c}}
`

const vendorsRestored = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: r, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: plain
  resources: {requests: {storage: 2Gi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}
`
