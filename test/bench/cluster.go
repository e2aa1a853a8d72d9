package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/standalone/apiserver/crds"
	"volplane.dev/volplane/standalone/pki"
	"volplane.dev/volplane/test/internal/plane"
)

// peerUser is the user of the measured programs.
const peerUser = "peer"

// auditPolicy makes the API server log each request of the peer, and no other.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: Metadata, users: [` + peerUser + `], omitStages: [RequestReceived]}
- {level: None}
`

// newCluster starts an arena whose API server and controller manager are Kubernetes' own, each a process. It has
// nodes, which are only objects. The caller must close it.
func newCluster(ctx context.Context) (*arena, context.Context, error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	a := &arena{dir: dir, fail: fail, stops: []func(){func() { fail(nil) }, func() { _ = os.RemoveAll(dir) }}}
	if err := a.openCluster(ctx); err != nil {
		a.close()
		return nil, nil, err
	}
	return a, ctx, nil
}

func (a *arena) openCluster(ctx context.Context) error {
	authority, err := pki.Open(a.dir)
	if err != nil {
		return err
	}
	address := plane.FreeAddress("127.0.0.1")
	for _, user := range []string{"admin", peerUser} {
		if err := a.writeKubeconfig(authority, address, user); err != nil {
			return err
		}
	}
	if err := a.startServers(authority, address); err != nil {
		return err
	}
	if err := a.connect(ctx, authority, address); err != nil {
		return err
	}
	d, stop, err := serveDriver(0)
	if err != nil {
		return err
	}
	a.driver, a.stops = d, append(a.stops, stop)
	_, err = a.client.StorageV1().CSIDrivers().Create(ctx,
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}, metav1.CreateOptions{})
	if err := errors.Join(err, a.installSnapshots(ctx), a.prepare(ctx), a.makeNodes(ctx)); err != nil {
		return err
	}
	_, err = a.run("kube-controller-manager", "--kubeconfig="+a.path("admin.kubeconfig"), "--leader-elect=false",
		"--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000",
		"--controllers=persistentvolume-binder-controller,persistentvolume-protection-controller,"+
			"persistentvolumeclaim-protection-controller,"+
			"persistentvolume-attach-detach-controller,persistentvolume-expander-controller")
	return err
}

func (a *arena) path(name string) string { return filepath.Join(a.dir, name) }

// peerKubeconfig returns the path of the kubeconfig of the programs that are measured.
func (a *arena) peerKubeconfig() string { return a.path(peerUser + ".kubeconfig") }

// writeKubeconfig writes the kubeconfig of a user who may do everything.
func (a *arena) writeKubeconfig(authority *pki.Authority, address, user string) error {
	leaf, err := authority.Client(user, "system:masters")
	if err != nil {
		return err
	}
	data, err := authority.Kubeconfig("https://"+address, user, leaf)
	if err != nil {
		return err
	}
	return os.WriteFile(a.path(user+".kubeconfig"), data, 0o600)
}

// startServers starts etcd and kube-apiserver.
func (a *arena) startServers(authority *pki.Authority, address string) error {
	serving, err := authority.Server("127.0.0.1")
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"serving.crt": serving.Cert, "serving.key": serving.Key, "audit.yaml": []byte(auditPolicy),
	} {
		if err := os.WriteFile(a.path(name), data, 0o600); err != nil {
			return err
		}
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	etcd, peer := "unix://"+a.path("etcd.sock"), "unix://"+a.path("peer.sock")
	if _, err := a.run("etcd", "--data-dir="+a.path("etcd"), "--log-level=warn", "--listen-client-urls="+etcd,
		"--advertise-client-urls="+etcd, "--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer,
		"--initial-cluster=default="+peer); err != nil {
		return err
	}
	_, err = a.run("kube-apiserver", "--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--secure-port="+port, "--endpoint-reconciler-type=none", "--authorization-mode=Node,RBAC",
		// The controller for service accounts does not run, and Pods here need none.
		"--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file="+a.path("serving.crt"), "--tls-private-key-file="+a.path("serving.key"),
		"--client-ca-file="+a.path("ca.crt"), "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+a.path("service-account.key"),
		"--service-account-signing-key-file="+a.path("service-account.key"),
		"--audit-policy-file="+a.path("audit.yaml"), "--audit-log-path="+a.path("audit.log"))
	return err
}

// connect makes the benchmark's own clients, and waits until the API server responds.
func (a *arena) connect(ctx context.Context, authority *pki.Authority, address string) error {
	leaf, err := authority.Client("admin", "system:masters")
	if err != nil {
		return err
	}
	config := &rest.Config{Host: "https://" + address, QPS: -1, TLSClientConfig: rest.TLSClientConfig{
		CAData: authority.CertPEM(), CertData: leaf.Cert, KeyData: leaf.Key,
	}}
	if a.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if a.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := a.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil, nil
	})
}

// installSnapshots installs the custom resources of snapshots, as an administrator does before csi-snapshotter.
func (a *arena) installSnapshots(ctx context.Context) error {
	all, err := crds.All()
	if err != nil {
		return err
	}
	kind := schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
	for _, one := range all {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(one)
		if err != nil {
			return fmt.Errorf("encode %s: %w", one.Name, err)
		}
		if _, err := a.dynamic.Resource(kind).Create(ctx, &unstructured.Unstructured{Object: fields},
			metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return a.snapshotsServed(ctx)
}
