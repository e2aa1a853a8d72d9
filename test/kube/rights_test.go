package kube

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestRightsOfManifestsSuffice: with only the account of the manifests, `volplane controller` creates a
// volume, attaches it, expands it, changes its attributes, takes and deletes a snapshot of it, detaches it and
// deletes it, beside the controllers of Kubernetes. The API server refuses no request (S3-030).
func TestRightsOfManifestsSuffice(t *testing.T) {
	t.Parallel()
	c, log := cluster.AuditedCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	c.Controllers(t, "persistentvolume-binder-controller", "persistentvolume-attach-detach-controller",
		"persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller")
	config := csitest.Full()
	config.NodeID, config.Controller.Snapshot, config.Controller.ListSnapshots = "id-n1", true, true
	driver := csitest.Start(t, config)
	i := c.Install(ctx, t, driver.Name(), "--controllers="+strings.Join(app.ClusterControllers(), ","),
		"--secrets=default/login")
	c.ServeSnapshots(ctx, t)
	i.CreateObjects(driver.Name())
	account := i.Base + "-controller"
	defer refusedNothing(i, log, account)
	ours := runs(i, "deployment", driver)
	i.Lives(driver)
	ours.End()
	asked := map[string]int{}
	for _, r := range i.Audited(log, account) {
		asked[strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")+" "+r.Verb]++
		// Other controllers of the driver are looked for in all namespaces.
		if of := r.ObjectRef; of.Resource == "leases" && of.Namespace != i.Space && of.Namespace != "" {
			t.Errorf("intents are in another namespace than the driver's: %s %s", r.Verb, r.RequestURI)
		}
	}
	// Otherwise another program has done the work, or nothing was recorded.
	for _, must := range []string{
		"persistentvolumes create", "persistentvolumes delete", "volumeattachments/status patch",
		"persistentvolumeclaims/status patch",
		"persistentvolumes patch", "volumesnapshots/status patch", "volumesnapshotcontents create",
		"volumesnapshotcontents/status patch", "volumesnapshotcontents delete",
		"csistoragecapacities create", "secrets get", "leases create", "leases update", "events create",
	} {
		if asked[must] == 0 {
			t.Errorf("it has never asked for %s, but %v", must, asked)
		}
	}
	t.Log("it has asked for", asked)
}

// runs starts the controllers of one of the shapes with the account and the arguments of the manifests.
func runs(i *cluster.Installation, shape string, driver *csitest.Driver) *upstream.Program {
	i.T.Helper()
	template, _ := templates(i, shape)
	args := slices.DeleteFunc(template.Spec.Containers[1].Args,
		func(a string) bool { return strings.HasPrefix(a, "--csi-address") })
	return upstream.Start(i.T, "volplane",
		append(args, "--csi-address="+driver.Socket, "--kubeconfig="+i.Identity(i.Base+"-controller"))...)
}

// refusedNothing fails the test if a request of an account was refused.
func refusedNothing(i *cluster.Installation, log, account string) {
	i.T.Helper()
	for _, r := range i.Audited(log, account) {
		if r.ResponseStatus.Code == http.StatusForbidden {
			i.T.Errorf("it may not %s %s: %s", r.Verb, r.RequestURI, r.ResponseStatus.Message)
		}
	}
}
