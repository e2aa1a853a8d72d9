package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/standalone/standalonetest"
)

// created returns what the chart has 'helm test' create.
func created(t *testing.T) (role rbacv1.ClusterRole, binding rbacv1.ClusterRoleBinding, pod corev1.Pod) {
	t.Helper()
	into := map[string]any{"ClusterRole": &role, "ClusterRoleBinding": &binding, "Pod": &pod}
	out, complaints, err := helm(t, "template", "release", committed, "--namespace=storage", "--values="+least,
		"--show-only=templates/tests/csidriver.yaml")
	if err != nil {
		t.Fatalf("helm: %v\n%s", err, complaints)
	}
	for document := range strings.SplitSeq(out, "---\n") {
		var o metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatal(err)
		}
		if o.Kind != "" && o.Annotations["helm.sh/hook"] != "test" {
			t.Errorf("%s %s is there without a test", o.Kind, o.Name)
		}
		if as := into[o.Kind]; as != nil {
			if err := yaml.UnmarshalStrict([]byte(document), as); err != nil {
				t.Fatal(err)
			}
		}
	}
	return role, binding, pod
}

// TestHelmTest does what 'helm test' makes a cluster do: with the rights from the chart, the Pod fails without the
// CSIDriver or without the rights, and succeeds with both.
func TestHelmTest(t *testing.T) {
	role, binding, pod := created(t)
	s := standalonetest.Start(t)
	client := standalonetest.Client(t, s, "")
	config, err := clientcmd.LoadFromFile(s.AdminKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:storage:" + pod.Spec.ServiceAccountName
		user.ImpersonateGroups = []string{"system:authenticated", "system:serviceaccounts"}
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	// runs returns how the Pod's container ends, if it is not as it should be.
	runs := func(want int, says string) string {
		var out bytes.Buffer
		args := append(slices.Clone(pod.Spec.Containers[0].Args), "--kubeconfig="+file)
		code := cli.Main(t.Context(), args, cli.Streams{Out: &out, Err: &out}, "test", cli.Programs{})
		if code != want || !strings.Contains(out.String(), says) {
			return fmt.Sprintf("the test ends with %d, want %d and %q: %s", code, want, says, &out)
		}
		return ""
	}
	// The API server's authorizer sees a role some time after its creation.
	eventually := func(want int, says string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() string { return runs(want, says) })
	}
	csiDriver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: role.Rules[0].ResourceNames[0]}}
	eventually(1, "forbidden")
	if _, err := client.RbacV1().ClusterRoles().Create(t.Context(), &role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(1, "not found")
	if _, err := client.StorageV1().CSIDrivers().Create(t.Context(), csiDriver, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(0, "csidriver.storage.k8s.io/"+csiDriver.Name)
}
