package kube

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/sidecar/manifest"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/upstream"
)

// restricted creates a namespace for restricted Pods, with the accounts of the driver's namespace.
func restricted(i *cluster.Installation) string {
	i.T.Helper()
	name := i.Base + "-restricted"
	_, err := i.Client.CoreV1().Namespaces().Create(i.Ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		},
	}, metav1.CreateOptions{})
	i.Must(err)
	for _, part := range []string{"-controller", "-node"} {
		_, err := i.Client.CoreV1().ServiceAccounts(name).Create(i.Ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: i.Base + part}}, metav1.CreateOptions{})
		i.Must(err)
	}
	return name
}

// pod returns the API server's error for a Pod from a template.
func pod(i *cluster.Installation, namespace string, from corev1.PodTemplateSpec) error {
	pod := &corev1.Pod{ObjectMeta: from.ObjectMeta, Spec: from.Spec}
	pod.Name = "pod"
	_, err := i.Client.CoreV1().Pods(namespace).Create(i.Ctx, pod,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// templates returns the Pods of the controller and of the nodes.
func templates(i *cluster.Installation, shape string) (controller, node corev1.PodTemplateSpec) {
	i.T.Helper()
	apps := i.Client.AppsV1()
	d, err := apps.DaemonSets(i.Space).Get(i.Ctx, i.Base+"-node", metav1.GetOptions{})
	i.Must(err)
	switch shape {
	case manifest.Deployment:
		o, err := apps.Deployments(i.Space).Get(i.Ctx, i.Base+"-controller", metav1.GetOptions{})
		i.Must(err)
		return o.Spec.Template, d.Spec.Template
	case manifest.StatefulSet:
		o, err := apps.StatefulSets(i.Space).Get(i.Ctx, i.Base+"-controller", metav1.GetOptions{})
		i.Must(err)
		return o.Spec.Template, d.Spec.Template
	}
	return d.Spec.Template, d.Spec.Template
}

// TestManifestsInACluster: Kubernetes accepts the manifests of each shape, also a second time. The
// controllers' Pod satisfies the restricted Pod security standard. The Pod on the nodes does not, but is
// allowed in the namespace that the manifests create (S1-090 to S1-096).
func TestManifestsInACluster(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, "--allow-privileged")
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
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
		i := c.Install(ctx, t, is.driver, append(is.flags, "--shape="+is.shape)...)
		controller, node := templates(i, is.shape)
		restricted := restricted(i)
		if err := pod(i, restricted, controller); err != nil && is.shape != manifest.DaemonSet {
			t.Errorf("the controllers' Pod in a restricted namespace: %v", err)
		}
		if err := pod(i, restricted, node); !apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), "violates PodSecurity") {
			t.Errorf("the Pod on the nodes in a restricted namespace: %v", err)
		}
		for _, template := range []corev1.PodTemplateSpec{controller, node} {
			if err := pod(i, i.Base, template); err != nil {
				t.Errorf("a Pod of the %s in its own namespace: %v", is.shape, err)
			}
		}
		d, err := c.Client.StorageV1().CSIDrivers().Get(ctx, is.driver, metav1.GetOptions{})
		i.Must(err)
		if everything := is.shape == manifest.DaemonSet; *d.Spec.AttachRequired == everything ||
			*d.Spec.StorageCapacity != everything {
			t.Errorf("the CSIDriver of the %s is %+v", is.shape, d.Spec)
		}
	}
}
