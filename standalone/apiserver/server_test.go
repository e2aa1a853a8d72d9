package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/standalonetest"
)

func TestRestartKeepsEverything(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	o := apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0"}
	begin := time.Now()
	s := start(t, o)
	t.Logf("fresh start %v", time.Since(begin))
	if _, err := standalonetest.Client(t, s, "").CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.Stat(s.AdminKubeconfig())
	if err != nil || kubeconfig.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v, %v; want mode 0600", kubeconfig, err)
	}
	_, err = apiserver.Start(t.Context(), o)
	if !errors.Is(err, datadir.ErrInUse) || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("second start in the same directory: %v", err)
	}
	administrator := standalonetest.Remote(t, s)
	if err := s.Answers(t.Context()); err != nil {
		t.Error(err)
	}
	s.Stop()
	if err := s.Answers(t.Context()); err == nil {
		t.Error("a server that was stopped answers")
	}
	begin = time.Now()
	s = start(t, o)
	t.Logf("restart %v", time.Since(begin))
	defer s.Stop()
	// This uses another address and the same certificate, of which there is only one.
	again := standalonetest.Remote(t, s)
	if again.Host != "https://"+s.Addr() || !bytes.Equal(again.CertData, administrator.CertData) ||
		!bytes.Equal(again.KeyData, administrator.KeyData) {
		t.Errorf("the administrator of %s reaches %s, by another certificate: %v", s.Addr(), again.Host,
			!bytes.Equal(again.CertData, administrator.CertData))
	}
	if _, err := standalonetest.Client(t, s, "").CoreV1().ConfigMaps("default").Get(t.Context(), "kept",
		metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestStartIsRefusedWithTheNextStep(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	newer := shortDir(t)
	file := filepath.Join(newer, "format")
	if err := os.WriteFile(file, []byte("99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    apiserver.Options
		is   error
		says string
	}{
		"port taken": {
			apiserver.Options{DataDir: shortDir(t), Listen: l.Addr().String()}, apiserver.ErrPortTaken, "--listen",
		},
		"no port":       {apiserver.Options{DataDir: shortDir(t), Listen: "127.0.0.1"}, nil, "host:port"},
		"no address":    {apiserver.Options{DataDir: shortDir(t), Listen: "nowhere.invalid:0"}, nil, "not an IP address"},
		"newer format":  {apiserver.Options{DataDir: newer, Listen: "127.0.0.1:0"}, datadir.ErrNewer, "format 99"},
		"not writable":  {apiserver.Options{DataDir: "/proc/volplane", Listen: "127.0.0.1:0"}, nil, "--data-dir"},
		"not directory": {apiserver.Options{DataDir: file, Listen: "127.0.0.1:0"}, nil, "--data-dir"},
	} {
		_, err := apiserver.Start(t.Context(), c.o)
		if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v; want %v saying %q", name, err, c.is, c.says)
		}
	}
}

func TestNodesAreConfined(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin, node := standalonetest.Client(t, s, ""), standalonetest.Client(t, s, "system:node:a", "system:nodes")
	ctx := t.Context()
	for _, name := range []string{"a", "b"} {
		if _, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.CoreV1().Secrets("default").Create(ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	status := []byte(`{"status":{"volumesInUse":["x"]}}`)
	_, own := node.CoreV1().Nodes().Patch(ctx, "a", types.MergePatchType, status, metav1.PatchOptions{}, "status")
	if own != nil {
		t.Errorf("own status: %v", own)
	}
	_, foreign := node.CoreV1().Nodes().Patch(ctx, "b", types.MergePatchType, status, metav1.PatchOptions{}, "status")
	_, secret := node.CoreV1().Secrets("default").Get(ctx, "other", metav1.GetOptions{})
	_, csiNode := node.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
		metav1.CreateOptions{})
	for what, err := range map[string]error{"status of b": foreign, "secret of nobody": secret, "CSINode of b": csiNode} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
}

// TestNodesReadTheSecretsOfTheirVolumes: those that a volume object names for
// the node, while a Pod of the node uses its claim; not those for the controllers
// (S1-124, S1-125).
func TestNodesReadTheSecretsOfTheirVolumes(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ref := func(name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: "default", Name: name}
	}
	for _, name := range []string{"a", "b"} {
		_, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		must(err)
	}
	for _, name := range []string{"stage", "publish", "expand", "attach", "resize"} {
		_, err := admin.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		must(err)
	}
	size, modes := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{Capacity: size, AccessModes: modes},
	}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "c"}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: "d.example.com", VolumeHandle: "h", NodeStageSecretRef: ref("stage"), NodePublishSecretRef: ref("publish"),
		NodeExpandSecretRef:        ref("expand"),
		ControllerPublishSecretRef: ref("attach"), ControllerExpandSecretRef: ref("resize"),
	}
	_, err := admin.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	must(err)
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
		VolumeName: "v", AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size},
	}}
	_, err = admin.CoreV1().PersistentVolumeClaims("default").Create(ctx, c, metav1.CreateOptions{})
	must(err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "a", Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	}}}
	_, err = admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	must(err)
	reads := func(node, secret string) error {
		_, err := standalonetest.Client(t, s, "system:node:"+node, "system:nodes").CoreV1().Secrets("default").Get(ctx,
			secret, metav1.GetOptions{})
		return err
	}
	for _, name := range []string{"stage", "publish", "expand"} {
		// The authorizer's state lags behind the API.
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true,
			func(context.Context) (bool, error) { return reads("a", name) == nil, nil })
		if err != nil {
			t.Errorf("the node may not read the Secret to %s its volume: %v", name, reads("a", name))
		}
		if err := reads("b", name); !apierrors.IsForbidden(err) {
			t.Errorf("another node and the Secret to %s the volume: %v", name, err)
		}
	}
	for _, name := range []string{"attach", "resize"} {
		if err := reads("a", name); !apierrors.IsForbidden(err) {
			t.Errorf("a node and the controllers' Secret to %s: %v", name, err)
		}
	}
}

func TestOnlyTheTrustedSetGuardedAnnotations(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	grant(t, admin)
	user := standalonetest.Client(t, s, "someone")
	pod := func(name, at string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}}
		if at != "" {
			p.Annotations = map[string]string{volume.AnnMountAt: at}
		}
		return p
	}
	pods := user.CoreV1().Pods("default")
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			_, err := pods.Create(ctx, pod("plain", ""), metav1.CreateOptions{})
			return err == nil, nil
		})
	if err != nil {
		t.Fatalf("a Pod without the annotation: %v", err)
	}
	_, create := pods.Create(ctx, pod("bad", "/etc"), metav1.CreateOptions{})
	_, patch := pods.Patch(ctx, "plain", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+volume.AnnMountAt+`":"/etc"}}}`), metav1.PatchOptions{})
	bind := pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{
		Name: "plain", Annotations: map[string]string{volume.AnnMountAt: "/etc"},
	}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, metav1.CreateOptions{})
	_, options := pods.Patch(ctx, "plain", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+volume.AnnMountOptions+`":"suid"}}}`), metav1.PatchOptions{})
	for what, err := range map[string]error{"create": create, "patch": patch, "bind": bind, "options": options} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "hostpaths") {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
	if _, err := admin.CoreV1().Pods("default").Create(ctx, pod("good", "/srv"), metav1.CreateOptions{}); err != nil {
		t.Errorf("administrator: %v", err)
	}
}

func TestNamespaceGoesWithItsObjects(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gone"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ConfigMaps("gone").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := admin.CoreV1().Namespaces().Delete(ctx, "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			_, err := admin.CoreV1().Namespaces().Get(ctx, "gone", metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
	if err != nil {
		t.Error(err)
	}
}

// TestNobodyWithoutIdentity: without a certificate, nothing is answered, and with CBC, nothing is said.
func TestNobodyWithoutIdentity(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	config := standalonetest.Remote(t, s)
	address := strings.TrimPrefix(config.Host, "https://")
	for _, suite := range tls.CipherSuites() {
		if !slices.Contains(suite.SupportedVersions, tls.VersionTLS12) || !strings.Contains(suite.Name, "ECDSA") {
			continue // the server's key is one of ECDSA
		}
		conn, err := (&tls.Dialer{Config: &tls.Config{
			MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite.ID}, InsecureSkipVerify: true,
		}}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			err = conn.Close()
		}
		if (err == nil) == strings.Contains(suite.Name, "_CBC_") {
			t.Errorf("%s: %v", suite.Name, err)
		}
	}
	config.CertData, config.KeyData = nil, nil
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) &&
		!apierrors.IsForbidden(err) {
		t.Errorf("list without an identity: %v", err)
	}
}

func start(t *testing.T, o apiserver.Options) *apiserver.Server {
	t.Helper()
	s, err := apiserver.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shortDir makes a directory in which the paths of sockets fit into 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "api-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// grant lets the user "someone" do everything with Pods.
func grant(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	rights := []kube.Access{
		kube.Write("", "pods", "create", "patch", "get"), kube.Write("", "pods/binding", "create"),
		kube.Write("", "persistentvolumeclaims", "create"),
	}
	for _, o := range kube.Roles("pods", rights, kube.User("someone")) {
		var err error
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			_, err = admin.RbacV1().ClusterRoles().Create(t.Context(), o, metav1.CreateOptions{})
		case *rbacv1.ClusterRoleBinding:
			_, err = admin.RbacV1().ClusterRoleBindings().Create(t.Context(), o, metav1.CreateOptions{})
		default:
			t.Fatalf("what is %T?", o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
