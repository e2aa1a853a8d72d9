package kube

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/manifest"
	"volplane.dev/volplane/test/internal/plane"
)

// installation is what `volplane manifests` has made in a cluster.
type installation struct {
	*cluster
	t   *testing.T
	ctx context.Context //nolint:containedctx // that of the test
	// base is the driver's name as part of others, space its namespace, which
	// has the same name unless the flags say otherwise.
	base, space string
}

// install gives the manifests for a driver to kubectl, as an administrator does.
func (c *cluster) install(ctx context.Context, t *testing.T, driver string, flags ...string) *installation {
	t.Helper()
	i := &installation{cluster: c, t: t, ctx: ctx, base: manifest.Base(driver), space: manifest.Base(driver)}
	for _, f := range flags {
		if space, ok := strings.CutPrefix(f, "--namespace="); ok {
			i.space = space
		}
	}
	flags = append([]string{
		"manifests", "--driver=" + driver, "--driver-image=example.com/driver:1", "--image=example.com/volplane:1",
	}, flags...)
	text, err := exec.CommandContext(ctx, plane.Bin("volplane"), flags...).Output()
	if err != nil {
		t.Fatal(err)
	}
	// The second time is an upgrade in which nothing is new.
	for range 2 {
		c.kubectl(ctx, t, string(text), "apply", "--validate=strict", "-f", "-")
	}
	return i
}

// kubectl runs Kubernetes' own client as the administrator. It must succeed, and warn of nothing.
func (c *cluster) kubectl(ctx context.Context, t *testing.T, input string, args ...string) {
	t.Helper()
	// A watch that kubectl begins anew is told in its log, with that word, too.
	if said := c.kubectlSays(ctx, t, input, args...); strings.Contains("\n"+said, "\nWarning:") {
		t.Fatalf("kubectl %s:\n%s", args[0], said)
	}
}

// kubectlSays runs kubectl, and returns what it says. It must succeed.
func (c *cluster) kubectlSays(ctx context.Context, t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, plane.Bin("kubectl"), append(args, "--kubeconfig="+c.AdminKubeconfig())...)
	cmd.Stdin = strings.NewReader(input)
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", args[0], err, said)
	}
	return string(said)
}

// serveSnapshots has the cluster serve the custom resources of snapshots.
func (c *cluster) serveSnapshots(ctx context.Context, t *testing.T) {
	t.Helper()
	c.kubectl(ctx, t, "", "apply", "-f", filepath.Join("..", "..", "standalone", "apiserver", "crds"))
}

func (i *installation) must(err error) {
	i.t.Helper()
	if err != nil {
		i.t.Fatal(err)
	}
}

// restricted makes a namespace for restricted Pods, with the accounts of the
// driver's.
func (i *installation) restricted() string {
	i.t.Helper()
	name := i.base + "-restricted"
	_, err := i.client.CoreV1().Namespaces().Create(i.ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		},
	}, metav1.CreateOptions{})
	i.must(err)
	for _, part := range []string{"-controller", "-node"} {
		_, err := i.client.CoreV1().ServiceAccounts(name).Create(i.ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: i.base + part}}, metav1.CreateOptions{})
		i.must(err)
	}
	return name
}

// pod returns what the API server says of a Pod made from a template.
func (i *installation) pod(namespace string, from corev1.PodTemplateSpec) error {
	pod := &corev1.Pod{ObjectMeta: from.ObjectMeta, Spec: from.Spec}
	pod.Name = "pod"
	_, err := i.client.CoreV1().Pods(namespace).Create(i.ctx, pod,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// templates returns the Pods of the controller and of the nodes.
func (i *installation) templates(shape string) (controller, node corev1.PodTemplateSpec) {
	i.t.Helper()
	apps := i.client.AppsV1()
	d, err := apps.DaemonSets(i.space).Get(i.ctx, i.base+"-node", metav1.GetOptions{})
	i.must(err)
	switch shape {
	case manifest.Deployment:
		o, err := apps.Deployments(i.space).Get(i.ctx, i.base+"-controller", metav1.GetOptions{})
		i.must(err)
		return o.Spec.Template, d.Spec.Template
	case manifest.StatefulSet:
		o, err := apps.StatefulSets(i.space).Get(i.ctx, i.base+"-controller", metav1.GetOptions{})
		i.must(err)
		return o.Spec.Template, d.Spec.Template
	}
	return d.Spec.Template, d.Spec.Template
}

// TestManifestsInACluster: Kubernetes accepts the manifests of each shape, also a second time. The
// controllers' Pod satisfies the restricted Pod security standard. The Pod on the nodes does not, but is
// allowed in the namespace that the manifests create (S1-090 to S1-096).
func TestManifestsInACluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--allow-privileged")
	ctx, cancel := context.WithTimeout(t.Context(), sceneLimit)
	defer cancel()
	for _, is := range []struct {
		shape, driver string
		flags         []string
	}{
		{manifest.Deployment, "csi.example.com", []string{
			"--replicas=3", "--host-path=/dev", "--node-selector=role=infra", "--toleration=dedicated=storage:NoSchedule",
		}},
		// A name as long as it may be, in a namespace as long as that.
		{manifest.StatefulSet, strings.Repeat("long.name.", 6) + "csi", []string{
			"--secrets=default/a,default/b,kube-system/c",
		}},
		{manifest.DaemonSet, "everything.example.com", []string{"--controllers=provisioner,capacity", "--secrets=*"}},
	} {
		i := c.install(ctx, t, is.driver, append(is.flags, "--shape="+is.shape)...)
		controller, node := i.templates(is.shape)
		restricted := i.restricted()
		if err := i.pod(restricted, controller); err != nil && is.shape != manifest.DaemonSet {
			t.Errorf("the controllers' Pod in a restricted namespace: %v", err)
		}
		if err := i.pod(restricted, node); !apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), "violates PodSecurity") {
			t.Errorf("the Pod on the nodes in a restricted namespace: %v", err)
		}
		for _, template := range []corev1.PodTemplateSpec{controller, node} {
			if err := i.pod(i.base, template); err != nil {
				t.Errorf("a Pod of the %s in its own namespace: %v", is.shape, err)
			}
		}
		d, err := c.client.StorageV1().CSIDrivers().Get(ctx, is.driver, metav1.GetOptions{})
		i.must(err)
		if everything := is.shape == manifest.DaemonSet; *d.Spec.AttachRequired == everything ||
			*d.Spec.StorageCapacity != everything {
			t.Errorf("the CSIDriver of the %s is %+v", is.shape, d.Spec)
		}
	}
}
