package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/standalone/pki"
	"volplane.dev/volplane/standalone/standalonetest"
	"volplane.dev/volplane/test/internal/node"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/upstream"
)

// startLimit bounds the start of etcd and the API server.
const startLimit = 5 * time.Minute

// Cluster is a control plane of Kubernetes itself: etcd and kube-apiserver, with RBAC, and whatever else a test starts
// over them. It has no kubelets: the nodes are objects.
type Cluster struct {
	t         *testing.T
	dir       string
	Address   string
	authority *pki.Authority
	Client    kubernetes.Interface
}

// Start runs etcd and kube-apiserver, with further flags, over a new
// directory until the test ends, and grants volplane's users what they declare.
func Start(t *testing.T, flags ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, dir: standalonetest.Dir(t), Address: plane.FreeAddress("127.0.0.1")}
	var err error
	if c.authority, err = pki.Open(c.dir); err != nil {
		t.Fatal(err)
	}
	if c.Client, err = kubernetes.NewForConfig(c.AdminConfig()); err != nil {
		t.Fatal(err)
	}
	c.Kubeconfig(t, "admin", "system:masters")
	etcd := c.etcd(t)
	c.ready(t, etcd, c.apiServer(t, flags))
	c.grant(t)
	return c
}

func (c *Cluster) socket() string { return "unix://" + c.Path("etcd.sock") }

func (c *Cluster) etcd(t *testing.T) *upstream.Program {
	t.Helper()
	peer := "unix://" + c.Path("peer.sock")
	return upstream.Start(t, "etcd", "--data-dir="+c.Path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+c.socket(), "--advertise-client-urls="+c.socket(),
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
}

func (c *Cluster) apiServer(t *testing.T, flags []string) *upstream.Program {
	t.Helper()
	serving, err := c.authority.Server("127.0.0.1", node.Service)
	if err != nil {
		t.Fatal(err)
	}
	c.write(t, "serving.crt", serving.Cert)
	c.write(t, "serving.key", serving.Key)
	_, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		t.Fatal(err)
	}
	return upstream.Start(t, "kube-apiserver", append(flags, "--etcd-servers="+c.socket(), "--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", "--secure-port="+port,
		"--endpoint-reconciler-type=none", "--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file="+c.Path("serving.crt"), "--tls-private-key-file="+c.Path("serving.key"),
		"--client-ca-file="+c.Path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.Path("service-account.key"),
		"--service-account-signing-key-file="+c.Path("service-account.key"))...)
}

// ready waits until the API server answers.
func (c *Cluster) ready(t *testing.T, programs ...*upstream.Program) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	begin := time.Now()
	upstream.Eventually(ctx, t, func() string {
		for _, p := range programs {
			select {
			case <-p.Ended:
				t.Fatal("a program of the control plane ended")
			default:
			}
		}
		if _, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
			return fmt.Sprint("the API server is not ready: ", err)
		}
		return ""
	})
	t.Log("etcd and kube-apiserver are ready after", time.Since(begin).Round(time.Millisecond))
}

// grant gives volplane's users their rights.
func (c *Cluster) grant(t *testing.T) {
	t.Helper()
	for _, o := range app.RBAC() {
		var err error
		rbac := c.Client.RbacV1()
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			_, err = rbac.ClusterRoles().Create(t.Context(), o, metav1.CreateOptions{})
		case *rbacv1.ClusterRoleBinding:
			_, err = rbac.ClusterRoleBindings().Create(t.Context(), o, metav1.CreateOptions{})
		case *rbacv1.Role:
			_, err = rbac.Roles(o.Namespace).Create(t.Context(), o, metav1.CreateOptions{})
		case *rbacv1.RoleBinding:
			_, err = rbac.RoleBindings(o.Namespace).Create(t.Context(), o, metav1.CreateOptions{})
		default:
			t.Fatalf("what is %T?", o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Path returns the path of a file in the directory of the cluster.
func (c *Cluster) Path(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(c.Path(name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// AdminConfig returns the administrator's way to the API server.
func (c *Cluster) AdminConfig() *rest.Config { return c.ClientConfig("admin", "system:masters") }

// AdminKubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) AdminKubeconfig() string { return c.Path("admin.kubeconfig") }

// ClientConfig returns the way to the API server of a user in groups: by a
// certificate.
func (c *Cluster) ClientConfig(user string, groups ...string) *rest.Config {
	leaf, err := c.authority.Client(user, groups...)
	if err != nil {
		// Goroutines other than the test's call this, too.
		c.t.Error(err)
	}
	return &rest.Config{
		Host: "https://" + c.Address, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.CertPEM(), CertData: leaf.Cert, KeyData: leaf.Key},
	}
}

// Kubeconfig writes the kubeconfig of a user in groups and returns its path.
func (c *Cluster) Kubeconfig(t *testing.T, user string, groups ...string) string {
	t.Helper()
	leaf, err := c.authority.Client(user, groups...)
	if err != nil {
		t.Fatal(err)
	}
	data, err := c.authority.Kubeconfig("https://"+c.Address, user, leaf)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ReplaceAll(user, ":", "-") + ".kubeconfig"
	c.write(t, name, data)
	return c.Path(name)
}

// Controllers runs these controllers of kube-controller-manager, each with the
// rights that Kubernetes gives it.
func (c *Cluster) Controllers(t *testing.T, names ...string) {
	t.Helper()
	c.ControllersWith(t, nil, names...)
}

// ControllersWith is controllers with further flags.
func (c *Cluster) ControllersWith(t *testing.T, flags []string, names ...string) {
	t.Helper()
	upstream.Start(t, "kube-controller-manager", append(flags, "--leader-elect=false", "--secure-port=0",
		"--kubeconfig="+c.Kubeconfig(t, "system:kube-controller-manager"),
		"--use-service-account-credentials", "--pvclaimbinder-sync-period="+upstream.SyncPeriod.String(),
		"--controllers="+strings.Join(names, ","))...)
}

// Scheduler runs kube-scheduler. A Pod that did not fit is tried again after a
// second.
func (c *Cluster) Scheduler(t *testing.T) {
	t.Helper()
	c.write(t, "scheduler.yaml", fmt.Appendf(nil, `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s}
leaderElection: {leaderElect: false}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
`, c.Kubeconfig(t, "system:kube-scheduler")))
	upstream.Start(t, "kube-scheduler", "--config="+c.Path("scheduler.yaml"), "--secure-port=0")
}

// Node creates a node in a zone that has a driver and room for Pods.
func (c *Cluster) Node(t *testing.T, name, where, driver string) {
	t.Helper()
	nodes := c.Client.CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			upstream.Zone:        where,
			corev1.LabelHostname: name,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Every new node is tainted as not ready; the controller that would remove the taint does not run.
	node.Spec.Taints = nil
	if node, err = nodes.Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("100"), corev1.ResourceCPU: resource.MustParse("8"),
		corev1.ResourceMemory: resource.MustParse("8Gi"),
	}
	node.Status.Capacity = node.Status.Allocatable
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.Client.StorageV1().CSINodes().Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "id-" + name, TopologyKeys: []string{upstream.Zone}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
