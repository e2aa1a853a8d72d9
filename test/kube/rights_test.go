package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// TestRightsOfManifestsSuffice: with only the account of the manifests, `volplane controller` creates a
// volume, attaches it, expands it, changes its attributes, takes and deletes a snapshot of it, detaches it and
// deletes it, beside the controllers of Kubernetes. The API server refuses no request (S3-030).
func TestRightsOfManifestsSuffice(t *testing.T) {
	t.Parallel()
	c, log := auditedCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), sceneLimit)
	defer cancel()
	c.controllers(t, "persistentvolume-binder-controller", "persistentvolume-attach-detach-controller",
		"persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller")
	config := csitest.Full()
	config.NodeID, config.Controller.Snapshot, config.Controller.ListSnapshots = "id-n1", true, true
	driver := csitest.Start(t, config)
	i := c.install(ctx, t, driver.Name(), "--controllers="+strings.Join(app.ClusterControllers(), ","),
		"--secrets=default/login")
	c.serveSnapshots(ctx, t)
	i.createObjects(driver.Name())
	account := i.base + "-controller"
	defer i.refusedNothing(log, account)
	ours := i.runs("deployment", driver)
	i.lives(driver)
	ours.end()
	asked := map[string]int{}
	for _, r := range i.audited(log, account) {
		asked[strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")+" "+r.Verb]++
		// Whether others call the driver is asked of all namespaces.
		if of := r.ObjectRef; of.Resource == "leases" && of.Namespace != i.space && of.Namespace != "" {
			t.Errorf("intents are in another namespace than the driver's: %s %s", r.Verb, r.RequestURI)
		}
	}
	// Otherwise somebody else has done the work, or nothing was noted.
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

// auditedCluster starts a cluster, and returns the path of the audit log with the requests of service
// accounts.
func auditedCluster(t *testing.T) (c *cluster, log string) {
	t.Helper()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	log = filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(onlyAccounts), 0o600); err != nil {
		t.Fatal(err)
	}
	return startCluster(t, "--allow-privileged", "--audit-policy-file="+policy, "--audit-log-path="+log), log
}

// onlyAccounts is an audit policy that logs the requests of service accounts.
const onlyAccounts = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts"]
- level: None
`

// runs starts the controllers of one of the shapes with the account and the arguments of the manifests.
func (i *installation) runs(shape string, driver *csitest.Driver) *program {
	i.t.Helper()
	template, _ := i.templates(shape)
	args := slices.DeleteFunc(template.Spec.Containers[1].Args,
		func(a string) bool { return strings.HasPrefix(a, "--csi-address") })
	return startProgram(i.t, "volplane",
		append(args, "--csi-address="+driver.Socket, "--kubeconfig="+i.identity(i.base+"-controller"))...)
}

// identity returns a kubeconfig with a token of one of the accounts.
func (i *installation) identity(account string) string {
	i.t.Helper()
	token, err := i.client.CoreV1().ServiceAccounts(i.space).CreateToken(i.ctx, account, &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	i.must(err)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{
		Server: "https://" + i.address, CertificateAuthorityData: i.authority.CertPEM(),
	}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	// In a Pod it is that of the account.
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: i.space}
	config.CurrentContext = "c"
	path := i.path(account + ".kubeconfig")
	i.must(clientcmd.WriteToFile(*config, path))
	return path
}

// createObjects makes a node with the driver, a class whose volumes need a Secret, and
// another one that waits for Pods.
func (i *installation) createObjects(driver string) {
	i.t.Helper()
	i.node(i.t, "n1", "a", driver)
	managed := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, volume.AnnControllerManagedAttach)
	_, err := i.client.CoreV1().Nodes().Patch(i.ctx, "n1", types.MergePatchType, managed, metav1.PatchOptions{})
	i.must(err)
	_, err = i.client.CoreV1().ServiceAccounts("default").Create(i.ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	i.must(err)
	_, err = i.client.CoreV1().Secrets("default").Create(i.ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "login"}, StringData: map[string]string{"key": "k"}},
		metav1.CreateOptions{})
	i.must(err)
	parameters := map[string]string{}
	for _, of := range []string{"provisioner", "controller-publish", "controller-expand"} {
		parameters["csi.storage.k8s.io/"+of+"-secret-name"], parameters["csi.storage.k8s.io/"+of+
			"-secret-namespace"] = "login", "default"
	}
	for name, mode := range map[string]storagev1.VolumeBindingMode{
		"fast": storagev1.VolumeBindingImmediate, "late": whenUsed,
	} {
		_, err = i.client.StorageV1().StorageClasses().Create(i.ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver, VolumeBindingMode: &mode,
			AllowVolumeExpansion: ptr.To(true), Parameters: parameters,
		}, metav1.CreateOptions{})
		i.must(err)
	}
}

// lives plays the life of a volume.
func (i *installation) lives(driver *csitest.Driver) {
	i.t.Helper()
	claims, pods, volumes := i.client.CoreV1().PersistentVolumeClaims("default"), i.client.CoreV1().Pods("default"),
		i.client.CoreV1().PersistentVolumes()
	claim, err := claims.Create(i.ctx, claimOf("c", "fast"), metav1.CreateOptions{})
	i.must(err)
	eventually(i.ctx, i.t, func() string {
		if claim, err = claims.Get(i.ctx, "c", metav1.GetOptions{}); err != nil || claim.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("the claim is not bound: %+v %v", claim.Status, err)
		}
		all, err := i.client.StorageV1().CSIStorageCapacities("").List(i.ctx, metav1.ListOptions{})
		if err != nil || len(all.Items) == 0 {
			return fmt.Sprint("nobody knows how much room there is: ", err)
		}
		return ""
	})
	i.uses("p", "c")
	i.attachments(1)
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	i.must(again(func() error {
		now, err := claims.Get(i.ctx, "c", metav1.GetOptions{})
		if err == nil {
			now.Spec.Resources = claim.Spec.Resources
			_, err = claims.Update(i.ctx, now, metav1.UpdateOptions{})
		}
		return err
	}))
	eventually(i.ctx, i.t, func() string {
		if v, err := volumes.Get(i.ctx, claim.Spec.VolumeName, metav1.GetOptions{}); err != nil ||
			v.Spec.Capacity.Storage().String() != "2Gi" {
			return fmt.Sprintf("the volume has %v: %v", v.Spec.Capacity, err)
		}
		return ""
	})
	i.changes(driver.Name())
	i.must(pods.Delete(i.ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	i.attachments(0)
	i.must(claims.Delete(i.ctx, "c", metav1.DeleteOptions{}))
	eventually(i.ctx, i.t, func() string {
		if v, err := volumes.Get(i.ctx, claim.Spec.VolumeName, metav1.GetOptions{}); !apierrors.IsNotFound(err) ||
			len(driver.Volumes()) > 0 {
			return fmt.Sprintf("the volume is left: %+v %v, the driver has %d", v.Status, err, len(driver.Volumes()))
		}
		return ""
	})
}

// uses makes a Pod on the node that uses a claim.
func (i *installation) uses(pod, claim string) {
	i.t.Helper()
	_, err := i.client.CoreV1().Pods("default").Create(i.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod}, Spec: corev1.PodSpec{
			NodeName: "n1", AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}, metav1.CreateOptions{})
	i.must(err)
}

// changes changes the attributes of the claim, and takes a snapshot of it and deletes it.
func (i *installation) changes(driver string) {
	i.t.Helper()
	wait := func(object, path string) {
		i.t.Helper()
		i.kubectl(i.ctx, i.t, "", "wait", object, "--namespace=default", "--for=jsonpath="+path, "--timeout=1m")
	}
	i.kubectl(i.ctx, i.t, strings.ReplaceAll(changesWanted, "DRIVER", driver), "apply", "-f", "-")
	i.kubectl(i.ctx, i.t, "", "patch", "pvc/c", "--namespace=default", `--patch={"spec":{"volumeAttributesClassName":"gold"}}`)
	wait("pvc/c", "{.status.currentVolumeAttributesClassName}=gold")
	wait("volumesnapshot/s", "{.status.readyToUse}=true")
	i.kubectl(i.ctx, i.t, "", "delete", "volumesnapshot/s", "--namespace=default", "--timeout=1m")
}

// changesWanted are a class of attributes for the claim, and a snapshot of it.
const changesWanted = `
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: gold}
driverName: DRIVER
parameters: {iops: "9"}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: shots}
driver: DRIVER
deletionPolicy: Delete
parameters:
  csi.storage.k8s.io/snapshotter-secret-name: login
  csi.storage.k8s.io/snapshotter-secret-namespace: default
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: s, namespace: default}
spec: {volumeSnapshotClassName: shots, source: {persistentVolumeClaimName: c}}
`

// attachments waits until there are so many, all of them attached.
func (i *installation) attachments(want int) {
	i.t.Helper()
	eventually(i.ctx, i.t, func() string {
		all, err := i.client.StorageV1().VolumeAttachments().List(i.ctx, metav1.ListOptions{})
		attached := slices.ContainsFunc(all.Items, func(a storagev1.VolumeAttachment) bool { return a.Status.Attached })
		if err != nil || len(all.Items) != want || attached != (want > 0) {
			return fmt.Sprintf("there are attachments %+v: %v", all.Items, err)
		}
		return ""
	})
}

// request is one in the API server's audit log.
type request struct {
	Verb, RequestURI string
	User             struct{ Username string }
	ObjectRef        struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus   struct {
		Code    int
		Message string
	}
}

// refusedNothing fails the test when an account has asked for what it may not.
func (i *installation) refusedNothing(log, account string) {
	i.t.Helper()
	for _, r := range i.audited(log, account) {
		if r.ResponseStatus.Code == http.StatusForbidden {
			i.t.Errorf("it may not %s %s: %s", r.Verb, r.RequestURI, r.ResponseStatus.Message)
		}
	}
}

// audited returns what an account has asked of the API server.
func (i *installation) audited(log, account string) []request {
	i.t.Helper()
	data, err := os.ReadFile(log)
	i.must(err)
	var out []request
	for line := range bytes.Lines(data) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			// The API server is writing what somebody else asks.
			break
		}
		var e request
		i.must(json.Unmarshal(line, &e))
		if e.User.Username == "system:serviceaccount:"+i.space+":"+account {
			out = append(out, e)
		}
	}
	return out
}
