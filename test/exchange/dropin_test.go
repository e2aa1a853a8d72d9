package exchange

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/upstream"
)

// sidecarRights are the RBAC manifests of upstream's programs, with their accounts and namespaces.
var sidecarRights = []struct{ module, file, account, space string }{
	{"external-provisioner/v6", "rbac.yaml", "csi-provisioner", "default"},
	{"external-attacher/v4", "rbac.yaml", "csi-attacher", "default"},
	{"external-resizer/v2", "rbac.yaml", "csi-resizer", "default"},
	{
		"external-snapshotter/v8", "csi-snapshotter/rbac-csi-snapshotter.yaml", "csi-snapshotter", "default",
	},
	{
		"external-snapshotter/v8", "snapshot-controller/rbac-snapshot-controller.yaml",
		"snapshot-controller", "kube-system",
	},
}

// TestRightsOfUpstreamSuffice: in the place of upstream's five sidecars, each with the rights of upstream's own
// manifests and with their usual arguments, volplane does everything that they do, and the API server refuses no
// request.
func TestRightsOfUpstreamSuffice(t *testing.T) {
	// The Pods of upstream's manifests have them by the downward API.
	t.Setenv("NAMESPACE", "default")
	t.Setenv("POD_NAME", "none")
	c, log := cluster.AuditedCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	c.Controllers(t, "persistentvolume-binder-controller", "persistentvolume-attach-detach-controller",
		"persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller")
	config := csitest.Full()
	config.NodeID, config.Controller.Snapshot, config.Controller.ListSnapshots = "id-n1", true, true
	driver := csitest.Start(t, config)
	i := &cluster.Installation{Cluster: c, T: t, Ctx: ctx, Base: "upstream", Space: "default"}
	c.ServeSnapshots(ctx, t)
	i.CreateObjects(driver.Name())
	arguments := map[string]string{
		"csi-provisioner": "--feature-gates=Topology=true --enable-capacity --capacity-ownerref-level=-1 " +
			"--extra-create-metadata",
		"csi-attacher": "-leader-election-retry-period=1s", "csi-resizer": "-handle-volume-inuse-error=false",
		"csi-snapshotter": "-snapshot-name-prefix=snap",
	}
	for _, s := range sidecarRights {
		i.Kubectl(ctx, t, upstreamManifest(t, s.module, s.file), "apply", "-f", "-")
		mayReadSecrets(i, s.account, s.space)
		i.Space = s.space
		args := append([]string{
			s.account, "--v=2", "--leader-election", "--leader-election-namespace=" + s.space,
			"--kubeconfig=" + i.Identity(s.account),
		},
			strings.Fields(arguments[s.account])...)
		if s.account != "snapshot-controller" {
			args = append(args, "--csi-address=unix://"+driver.Socket)
		}
		upstream.Start(t, "volplane", args...)
	}
	i.Lives(driver)
	for _, s := range sidecarRights {
		i.Space = s.space
		asked := i.Audited(log, s.account)
		for _, r := range asked {
			// Only an account with that right from the vendor can find out whether other programs call the driver.
			if r.ResponseStatus.Code == http.StatusForbidden && (r.ObjectRef.Resource != "leases" || r.Verb != "list") &&
				!optional(r) {
				t.Errorf("%s may not %s %s: %s", s.account, r.Verb, r.RequestURI, r.ResponseStatus.Message)
			}
		}
		if len(asked) == 0 {
			t.Errorf("%s has asked for nothing", s.account)
		}
	}
}

// optional says that upstream's program does not write the object, and that nothing depends on it.
func optional(r cluster.Request) bool {
	// Upstream's attacher records no events.
	return r.ObjectRef.Resource == "events"
}

// mayReadSecrets gives an account the right that a vendor adds if its driver needs Secrets.
func mayReadSecrets(i *cluster.Installation, account, space string) {
	i.T.Helper()
	name := metav1.ObjectMeta{Name: "secrets-" + account}
	_, err := i.Client.RbacV1().ClusterRoles().Create(i.Ctx, &rbacv1.ClusterRole{
		ObjectMeta: name, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "list"}},
			{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"volumeattributesclasses"}, Verbs: []string{"get"}},
		},
	}, metav1.CreateOptions{})
	i.Must(err)
	_, err = i.Client.RbacV1().ClusterRoleBindings().Create(i.Ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: space}},
	}, metav1.CreateOptions{})
	i.Must(err)
}

// upstreamManifest returns a file of upstream's deploy/kubernetes, in the version of the program that the tests build.
func upstreamManifest(t *testing.T, module, file string) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubernetes-csi/"+module)
	dir, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "deploy", "kubernetes", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
