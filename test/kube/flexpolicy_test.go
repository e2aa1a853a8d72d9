package kube

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/sidecar/manifest"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/upstream"
)

// team is a namespace whose users may create Pods. The user trusted and the service account trusted may also use one
// FlexVolume driver inline, and the user several may use three. There are three CSI drivers: a bridge serves the first
// for the FlexVolume driver, and the others are not FlexVolume drivers.
const team = `
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: team}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: trusted, namespace: team}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pods, namespace: team}
rules: [{apiGroups: [""], resources: [pods], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: pods, namespace: team}
subjects: [{kind: User, name: plain}, {kind: User, name: trusted}, {kind: User, name: several}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: pods}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: flex, namespace: team}
rules: [{apiGroups: [volplane.dev], resources: [flexdrivers], resourceNames: [example.com/scratch], verbs: [use]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: flex, namespace: team}
subjects: [{kind: User, name: trusted}, {kind: ServiceAccount, name: trusted, namespace: team}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: flex}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: several, namespace: team}
rules: [{apiGroups: [volplane.dev], resources: [flexdrivers], resourceNames: [a, b, c], verbs: [use]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: several, namespace: team}
subjects: [{kind: User, name: several}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: several}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata:
  name: scratch.example.com
  labels: {app.kubernetes.io/managed-by: volplane}
  annotations: {volplane.dev/flex-driver: example.com/scratch}
spec: {volumeLifecycleModes: [Ephemeral]}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: made.example.com, labels: {app.kubernetes.io/managed-by: volplane}}
spec: {volumeLifecycleModes: [Ephemeral]}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: foreign.example.com}
spec: {volumeLifecycleModes: [Ephemeral]}
`

// refuses says whether an error is that of the policy for a driver; nil is the one for no driver.
func refuses(err error, driver string) bool {
	if driver == "" {
		return err == nil
	}
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "FlexVolume driver "+driver+": neither the user "+
		"nor the service account of the Pod has the verb use on flexdrivers of volplane.dev in this namespace")
}

// createPodWith makes a user create a Pod with a service account and volumes.
func createPodWith(
	ctx context.Context, t *testing.T, c *cluster.Cluster, user, account string, volumes []corev1.VolumeSource,
) error {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.ClientConfig(user))
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Namespace: "team"},
		Spec: corev1.PodSpec{
			ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	for i, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: string(rune('a' + i)), VolumeSource: v})
	}
	_, err = client.CoreV1().Pods("team").Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// TestFlexPolicy: with the policy that volplane prints, a cluster accepts a Pod that names a FlexVolume driver only if
// its user or its service account has the right to use this driver.
func TestFlexPolicy(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	c.Kubectl(ctx, t, team, "apply", "--validate=strict", "-f", "-")
	c.Kubectl(ctx, t, manifest.FlexPolicy, "apply", "--validate=strict", "-f", "-")

	flexVolume := func(driver string) corev1.VolumeSource {
		return corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: driver}}
	}
	csi := func(driver string) corev1.VolumeSource {
		return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}
	}
	create := func(user, account string, volumes ...corev1.VolumeSource) error {
		return createPodWith(ctx, t, c, user, account, volumes)
	}
	// An API server enforces a policy, and grants a right, a moment after it was created.
	upstream.Eventually(ctx, t, func() string {
		for _, v := range []corev1.VolumeSource{flexVolume("example.com/scratch"), csi("scratch.example.com")} {
			if err := create("plain", "", v); !apierrors.IsForbidden(err) {
				return "the policy does not act yet"
			}
			if err := create("trusted", "", v); err != nil {
				return err.Error()
			}
		}
		return ""
	})
	empty := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	for _, row := range []struct {
		what, user, account string
		volumes             []corev1.VolumeSource
		refused             string
	}{
		{"no volumes", "plain", "", nil, ""},
		{"another volume", "plain", "", []corev1.VolumeSource{empty}, ""},
		{"by the service account", "plain", "trusted", []corev1.VolumeSource{flexVolume("example.com/scratch")}, ""},
		{"by its CSI name and the account", "plain", "trusted", []corev1.VolumeSource{csi("scratch.example.com")}, ""},
		{
			"a driver that is not allowed", "trusted", "trusted",
			[]corev1.VolumeSource{flexVolume("example.com/lofs")},
			"example.com/lofs",
		},
		{
			"one of two", "trusted", "",
			[]corev1.VolumeSource{empty, flexVolume("example.com/scratch"), flexVolume("example.com/lofs")},
			"example.com/lofs",
		},
		{
			"the same driver twice", "trusted", "",
			[]corev1.VolumeSource{flexVolume("example.com/scratch"), flexVolume("example.com/scratch")},
			"",
		},
		{
			"the fourth", "several", "",
			[]corev1.VolumeSource{flexVolume("a"), flexVolume("b"), flexVolume("c"), flexVolume("d")},
			"d",
		},
		{"by its CSI name", "plain", "", []corev1.VolumeSource{empty, csi("scratch.example.com")}, "example.com/scratch"},
		{"a CSI driver with volplane beside it", "plain", "", []corev1.VolumeSource{csi("made.example.com")}, ""},
		{"another CSI driver", "plain", "", []corev1.VolumeSource{csi("foreign.example.com")}, ""},
		{"a CSI driver that is not there", "plain", "", []corev1.VolumeSource{csi("absent.example.com")}, ""},
	} {
		err := create(row.user, row.account, row.volumes...)
		if !refuses(err, row.refused) {
			t.Errorf("%s: %v, want driver %q to be refused", row.what, err, row.refused)
		}
	}
	err := create("several", "", flexVolume("a"), flexVolume("b"), flexVolume("c"), flexVolume("d"), flexVolume("e"))
	const want = "a Pod may have the volumes of four FlexVolume drivers"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("five drivers: %v, want %s", err, want)
	}
}
