package kube

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/kubelet"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestWhyInACluster runs `volplane why` in a cluster of Kubernetes with its own scheduler, controllers,
// kubelet and sidecars, as users who may only read, while the test causes faults. Each row is a question of
// the acceptance list.
func TestWhyInACluster(t *testing.T) {
	w := newWhyCluster(t)
	for _, row := range []struct {
		name string
		ask  func()
	}{
		{"healthy", w.healthy},
		{"W-2 last call", w.lastCall},
		{"W-3 finalizers", w.finalizers},
		{"W-4 attached", w.attached},
		{"W-5 another node", w.anotherNode},
		{"W-6 topology and limits", w.limits},
		{"W-6 registration", w.registration},
		{"W-7 secrets", w.secrets},
		{"W-1 who is alive", w.alive},
	} {
		began := time.Now()
		if !t.Run(row.name, func(t *testing.T) { w.t = t; row.ask() }) {
			return
		}
		t.Logf("%s: %v", row.name, time.Since(began).Round(time.Millisecond))
	}
}

// whyCluster is a cluster with users who run why. Node n1 has a kubelet, and n2 is only an object.
type whyCluster struct {
	*cluster.Cluster
	t      *testing.T
	ctx    context.Context //nolint:containedctx // that of the test
	driver *csitest.Driver
	// reader may read what `why` reads, stranger neither ConfigMaps nor Leases.
	reader, stranger                             string
	controllers, provisioner, attacher, register *upstream.Program
}

func newWhyCluster(t *testing.T) *whyCluster {
	t.Helper()
	w := &whyCluster{Cluster: cluster.Start(t), t: t}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithTimeout(t.Context(), cluster.MountLimit)
	t.Cleanup(cancel)
	w.driver, _ = upstream.StartDriver(t, upstream.Mounting, func(c *csitest.Config) { c.MaxVolumes = 3 })
	// The kubelet waits for the driver, which must outlive it.
	root := w.KubeletWith(t, kubelet.Options{Node: "n1"})
	term := []string{
		"--leader-elect-lease-duration=12s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=1s",
		"--secure-port=0", "--pvclaimbinder-sync-period=" + upstream.SyncPeriod.String(),
		"--controllers=persistentvolume-attach-detach-controller," + strings.Join(upstream.TheirBinder, ","),
	}
	w.controllers = w.leader(t, "kube-controller-manager", term...)
	w.Scheduler(t)
	beside := upstream.Leading("--csi-address="+w.driver.Socket, "--leader-election",
		"--leader-election-namespace=default")
	w.attacher = w.leader(t, "csi-attacher", append(beside, "--retry-interval-start=100ms")...)
	w.provisioner = w.leader(t, "csi-provisioner", append(beside, "--retry-interval-start=100ms")...)
	w.register = upstream.Start(t, "volplane", "registrar", "--csi-address="+w.driver.Socket,
		"--kubelet-registration-path="+w.driver.Socket,
		"--plugin-registration-path="+filepath.Join(root, "plugins_registry"))
	w.Node(t, "n2", "a", w.driver.Name())
	w.patchNode("n2", "", `{"metadata":{"annotations":{"`+volume.AnnControllerManagedAttach+`":"true"}}}`)
	w.createObjects()
	return w
}

func (w *whyCluster) leader(t *testing.T, name string, args ...string) *upstream.Program {
	t.Helper()
	return upstream.Start(t, name, append(args, "--kubeconfig="+w.AdminKubeconfig())...)
}

func (w *whyCluster) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// createObjects creates the users, and what Pods need.
func (w *whyCluster) createObjects() {
	w.t.Helper()
	w.reader = w.mayRead("reader", "configmaps", "leases")
	w.stranger = w.mayRead("stranger")
	_, err := w.Client.CoreV1().ServiceAccounts("default").Create(w.ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	w.must(err)
	_, err = w.Client.StorageV1().CSIDrivers().Create(w.ctx,
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: w.driver.Name()}}, metav1.CreateOptions{})
	w.must(err)
	ours := w.driver.Name()
	for class, provisioner := range map[string]string{"fast": ours, "secret": ours, "misspelt": "tset.csi.example.com"} {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: provisioner}
		if class == "secret" {
			const of = "csi.storage.k8s.io/provisioner-secret-"
			c.Parameters = map[string]string{of + "name": "login-${pvc.name}", of + "namespace": "default"}
		}
		_, err = w.Client.StorageV1().StorageClasses().Create(w.ctx, c, metav1.CreateOptions{})
		w.must(err)
	}
	w.known(1)
	// The controller that would remove the taint of a new node does not run.
	w.patchNode("n1", "", `{"spec":{"taints":null}}`)
}

// known waits until the kubelet knows so many drivers.
func (w *whyCluster) known(count int) {
	w.t.Helper()
	upstream.Eventually(w.ctx, w.t, func() string {
		n, err := w.Client.StorageV1().CSINodes().Get(w.ctx, "n1", metav1.GetOptions{})
		if err != nil || len(n.Spec.Drivers) != count {
			return fmt.Sprintf("the kubelet knows drivers %+v: %v", n.Spec.Drivers, err)
		}
		return ""
	})
}

// mayRead returns the kubeconfig of a new user who may read what `why` needs, and additionally what more names.
func (w *whyCluster) mayRead(user string, more ...string) string {
	w.t.Helper()
	meta := metav1.ObjectMeta{Name: user}
	resources := append(more, "persistentvolumeclaims", "persistentvolumes", "pods", "nodes", "events", "storageclasses",
		"csidrivers", "csinodes", "volumeattachments")
	_, err := w.Client.RbacV1().ClusterRoles().Create(w.ctx,
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{
				APIGroups: []string{"", "storage.k8s.io", "coordination.k8s.io"}, Resources: resources,
				Verbs: []string{"get", "list", "watch"},
			},
		}}, metav1.CreateOptions{})
	w.must(err)
	_, err = w.Client.RbacV1().ClusterRoleBindings().Create(w.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: user}},
	}, metav1.CreateOptions{})
	w.must(err)
	return w.Kubeconfig(w.t, user)
}

func (w *whyCluster) patchNode(name, subresource, patch string) {
	w.t.Helper()
	var sub []string
	if subresource != "" {
		sub = append(sub, subresource)
	}
	_, err := w.Client.CoreV1().Nodes().Patch(w.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{},
		sub...)
	w.must(err)
}

// claim creates a claim and waits until it is bound.
func (w *whyCluster) claim(name string) {
	w.t.Helper()
	w.wish(name, "fast")
	upstream.Eventually(w.ctx, w.t, func() string {
		c, err := w.Client.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, name, metav1.GetOptions{})
		if err != nil || c.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("claim %s is not bound: %+v %v", name, c.Status, err)
		}
		return ""
	})
}

// wish creates a claim.
func (w *whyCluster) wish(name, class string) {
	w.t.Helper()
	_, err := w.Client.CoreV1().PersistentVolumeClaims("default").Create(w.ctx, upstream.ClaimOf(name, class),
		metav1.CreateOptions{})
	w.must(err)
}

// pod creates a Pod for a node, or for a scheduler that may only choose that one.
func (w *whyCluster) pod(name, claim, node string, placed bool) {
	w.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](1),
		Containers: []corev1.Container{
			{Name: "c", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}},
		},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}},
	}}
	if p.Spec.NodeName = node; !placed {
		p.Spec.NodeName, p.Spec.NodeSelector = "", map[string]string{corev1.LabelHostname: node}
	}
	_, err := w.Client.CoreV1().Pods("default").Create(w.ctx, p, metav1.CreateOptions{})
	w.must(err)
}

// end removes a Pod; by force means without its kubelet.
func (w *whyCluster) end(pod string, force bool) {
	w.t.Helper()
	o := metav1.DeleteOptions{}
	if force {
		o.GracePeriodSeconds = ptr.To[int64](0)
	}
	w.must(w.Client.CoreV1().Pods("default").Delete(w.ctx, pod, o))
}

// said is the output of `volplane why`, in one line, and its exit code.
func (w *whyCluster) said(as string, args ...string) (string, int) {
	w.t.Helper()
	cmd := exec.CommandContext(w.ctx, plane.Bin("volplane"), append([]string{"why", "--kubeconfig=" + as}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	return strings.Join(strings.Fields(regexp.MustCompile("[│├└─]").ReplaceAllString(string(out), " ")),
		" "), cmd.ProcessState.ExitCode()
}

// tells waits until an answer with the exit code has all the words; stars in them match what differs.
func (w *whyCluster) tells(as string, code int, object string, words ...string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, answerLimit)
	defer cancel()
	// A program is started each time.
	pause := time.NewTicker(500 * time.Millisecond)
	defer pause.Stop()
	for {
		got, exit := w.said(as, strings.Fields(object)...)
		missing := missingOf(got, words)
		if missing == "" && exit == code {
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			w.t.Fatalf("why %s says (%d) %s\nwant (%d) %s", object, exit, got, code, missing)
		}
	}
}

// answerLimit is how long an answer may take to become the expected one.
const answerLimit = time.Minute

// missingOf returns the first of the words that a text does not have; empty when it
// has all.
func missingOf(text string, words []string) string {
	for _, word := range words {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(word), `\*`, `\S+`)
		if !regexp.MustCompile(pattern).MatchString(text) {
			return word
		}
	}
	return ""
}

// healthy: a claim that a Pod of the kubelet uses is healthy, and the exit code shows it.
func (w *whyCluster) healthy() {
	w.claim("c1")
	w.pod("p1", "c1", "n1", false)
	w.tells(w.reader, 0, "-A", "Nothing waits: 1 claims, 1 pods, 1 volumes and 2 nodes")
	w.tells(w.reader, 0, "pod/p1", "pod/p1 is healthy: all volumes are mounted (Mounted).", "attachment/n1 ok")
	w.tells(w.stranger, 0, "-A", "Nothing waits")
}

// lastCall: a driver that refuses is reported with its call, code and text, how often the
// kubelet has tried, and when for the last time (W-2).
func (w *whyCluster) lastCall() {
	w.driver.OnCall("NodeStageVolume", func(int, any) csitest.Action {
		return csitest.Action{Err: status.Error(codes.Internal, "disk on fire")}
	})
	w.claim("c2")
	w.pod("p2", "c2", "n1", false)
	w.tells(w.reader, 2, "pod/p2", "pod/p2 has a problem: on node n1: MountVolume.MountDevice failed for volume",
		"code = Internal desc = disk on fire",
		"times, last at", "(FailedMount). Next: node n1.")
	w.tells(w.stranger, 2, "pvc/c2", "disk on fire")
	w.driver.OnCall("NodeStageVolume", nil)
	w.tells(w.reader, 0, "pod/p2", "is healthy")
}

// finalizers: what keeps an object, and which program has to remove it (W-3).
func (w *whyCluster) finalizers() {
	keep := []byte(`{"metadata":{"finalizers":["example.com/keep","external-attacher/test-csi-example-com"]}}`)
	a := w.attachment("c2")
	_, err := w.Client.StorageV1().VolumeAttachments().Patch(w.ctx, a, types.MergePatchType, keep, metav1.PatchOptions{})
	w.must(err)
	w.end("p2", false)
	w.tells(w.reader, 2, "va/"+a,
		"finalizer example.com/keep belongs to another program (Terminating). Next: owner of example.com/keep.")
	_, err = w.Client.StorageV1().VolumeAttachments().Patch(w.ctx, a, types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(w.Client.CoreV1().PersistentVolumeClaims("default").Delete(w.ctx, "c1", metav1.DeleteOptions{}))
	w.tells(w.reader, 2, "pvc/c1", "pod p1 on node n1 (kubernetes.io/pvc-protection)", "Next: pod p1.")
}

// attachment returns the name of the one of a claim's volume.
func (w *whyCluster) attachment(claim string) (name string) {
	w.t.Helper()
	c, err := w.Client.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, claim, metav1.GetOptions{})
	w.must(err)
	upstream.Eventually(w.ctx, w.t, func() string {
		all, err := w.Client.StorageV1().VolumeAttachments().List(w.ctx, metav1.ListOptions{})
		w.must(err)
		for _, a := range all.Items {
			if ptr.Deref(a.Spec.Source.PersistentVolumeName, "") == c.Spec.VolumeName {
				name = a.Name
				return ""
			}
		}
		return "the volume of claim " + claim + " has no attachment"
	})
	return name
}

// attached: a volume is attached, and its node does not say that it uses it (W-4).
func (w *whyCluster) attached() {
	w.pod("p3", "c2", "n2", true)
	w.tells(w.reader, 2, "pod/p3", "attachment/n2 ok SuccessfulAttachVolume",
		"node n2 has not reported anything about the Pod yet (Mounting). Next: node n2.")
	creating := []byte(`{"status":{"containerStatuses":[{"name":"c","image":"none","imageID":"","ready":false,` +
		`"restartCount":0,"state":{"waiting":{"reason":"ContainerCreating"}}}]}}`)
	_, err := w.Client.CoreV1().Pods("default").Patch(w.ctx, "p3", types.MergePatchType, creating, metav1.PatchOptions{},
		"status")
	w.must(err)
	w.tells(w.reader, 2, "pod/p3", "node n2 does not list volume * as in use yet (status.volumesInUse)")
}

// anotherNode: which node and Pod have the volume, whether the node is gone, and
// when it is detached by force (W-5).
func (w *whyCluster) anotherNode() {
	w.pod("p4", "c2", "n1", true)
	w.tells(w.reader, 2, "pod/p4",
		`Multi-Attach error for volume "*": it can be on one node at a time and is still attached to node n2`,
		"used there by pod p3 (MultiAttach). Next: pod p3.")
	c, err := w.Client.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, "c2", metav1.GetOptions{})
	w.must(err)
	v, err := w.Client.CoreV1().PersistentVolumes().Get(w.ctx, c.Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	w.patchNode("n2", "status", fmt.Sprintf(`{"status":{"volumesInUse":[%q],"conditions":[{"type":"Ready",`+
		`"status":"Unknown","reason":"NodeStatusUnknown","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`,
		volume.UniqueName(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)))
	w.tells(w.reader, 2, "pod/p4",
		"node n2 is not ready since 2026-01-02 03:04:05 UTC: NodeStatusUnknown (NodeGone). Next: administrator of node n2.",

		"by force 6 minutes after its last Pod there has gone; pod p3 is not being deleted")
	w.end("p3", false)
	w.tells(w.reader, 2, "pod/p4", "pod p3 is being deleted, and no agent on the node terminates it")
	w.end("p4", true)
	w.end("p3", true)
	w.tells(w.reader, 2, "pvc/c2", "volume * is still mounted on node n2 as far as is known",
		"Next: administrator of node n2.")
	w.pod("p5", "c2", "n1", true)
	w.tells(w.reader, 2, "pod/p5", "UTC at the latest", "node.kubernetes.io/out-of-service")
	w.tells(w.reader, 2, "-A", "node n2 is not ready since")
	w.patchNode("n2", "status", `{"status":{"volumesInUse":[],"conditions":[{"type":"Ready","status":"True"}]}}`)
	w.tells(w.reader, 0, "pod/p5", "is healthy")
}

// limits: whether a node accepts a Pod with its volumes, according to the scheduler's message and CSINodes (W-6).
func (w *whyCluster) limits() {
	w.claim("c6")
	w.claim("c7")
	w.pod("p6", "c6", "n1", false)
	w.tells(w.reader, 0, "pod/p6", "is healthy")
	w.pod("p7", "c7", "n1", false)
	w.tells(w.reader, 2, "pod/p7", "exceed max volume count",
		"node n1 can have 3 volumes of driver test.csi.example.com and has 3", "(FailedScheduling). Next: user.")
	w.tells(w.reader, 0, "node/n1", "registered as id-n1, can have 3 volumes and has 3")
	w.end("p7", true)
	w.wish("c8", "misspelt")
	w.pod("p8", "c8", "n1", false)
	w.tells(w.reader, 2, "pod/p8",
		"driver tset.csi.example.com *", "registered", "(DriverMissing). Next: ")
	w.end("p8", true)
	w.must(w.Client.CoreV1().PersistentVolumeClaims("default").Delete(w.ctx, "c8", metav1.DeleteOptions{}))
}

// registration: the driver is not registered on the Pod's node (W-6).
func (w *whyCluster) registration() {
	w.register.End()
	w.known(0)
	w.pod("p7", "c7", "n1", true)
	w.tells(w.reader, 2, "pod/p7",
		"driver test.csi.example.com has not registered on node n1 (DriverMissing). Next: test.csi.example.com.")
	w.tells(w.reader, 0, "pod/p5", "is healthy")
	w.end("p7", true)
	w.end("p6", false)
	w.tells(w.reader, 2, "pvc/c6",
		"is still mounted on node n1, and driver test.csi.example.com, which unmounts it, has not registered there",
		"Next: test.csi.example.com.")
}

// secrets: a Secret that a class names does not exist (W-7).
func (w *whyCluster) secrets() {
	w.wish("c9", "secret")
	w.tells(w.reader, 2, "pvc/c9", `secrets "login-c9" not found`, "(ProvisioningFailed). Next: user.")
	w.tells(w.stranger, 2, "pvc/c9", `secrets "login-c9" not found`)
	w.must(w.Client.CoreV1().PersistentVolumeClaims("default").Delete(w.ctx, "c9", metav1.DeleteOptions{}))
}

// alive: the next actor shows no sign of life, by its lease (W-1).
func (w *whyCluster) alive() {
	w.claim("c12")
	w.attacher.Kill()
	w.pod("p10", "c7", "n2", true)
	w.attachment("c7")
	w.provisioner.Kill()
	w.wish("c11", "fast")
	w.controllers.Kill()
	w.pod("p12", "c12", "n2", true)
	const last = "shows no sign of life: * last renewed lease "
	w.tells(w.reader, 2, "pod/p10",
		"the attacher of driver test.csi.example.com "+last+"default/external-attacher-leader-test-csi-example-com",
		"*s ago (LeaderGone). Next: test.csi.example.com.")
	w.tells(w.reader, 2, "pvc/c11",
		"the provisioner of driver test.csi.example.com "+last+"default/test-csi-example-com *s ago")
	w.tells(w.reader, 2, "pod/p12",
		"kube-controller-manager "+last+"kube-system/kube-controller-manager *s ago",
		"Next: administrator of the control plane.")
	got, _ := w.said(w.reader, "-A")
	if n := strings.Count(got, "csidriver/test.csi.example.com problem LeaderGone"); n != 1 {
		w.t.Errorf("the driver's controllers are %d causes: %s", n, got)
	}
	w.tells(w.stranger, 2, "pod/p10",
		"whether the attacher of driver test.csi.example.com is alive is not known, because you may not list leases")
	w.tells(w.stranger, 2, "pvc/c11", "with the right to list the ConfigMaps of all namespaces")
}
