package cluster

import (
	"fmt"
	"slices"
	"strings"

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

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/upstream"
)

// Identity returns a kubeconfig with a token of one of the accounts.
func (i *Installation) Identity(account string) string {
	i.T.Helper()
	token, err := i.Client.CoreV1().ServiceAccounts(i.Space).CreateToken(i.Ctx, account, &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	i.Must(err)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{
		Server: "https://" + i.Address, CertificateAuthorityData: i.authority.CertPEM(),
	}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	// In a Pod it is that of the account.
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: i.Space}
	config.CurrentContext = "c"
	path := i.Path(account + ".kubeconfig")
	i.Must(clientcmd.WriteToFile(*config, path))
	return path
}

// CreateObjects makes a node with the driver, a class whose volumes need a Secret, and one that binds late.
func (i *Installation) CreateObjects(driver string) {
	i.T.Helper()
	i.Node(i.T, "n1", "a", driver)
	managed := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, volume.AnnControllerManagedAttach)
	_, err := i.Client.CoreV1().Nodes().Patch(i.Ctx, "n1", types.MergePatchType, managed, metav1.PatchOptions{})
	i.Must(err)
	_, err = i.Client.CoreV1().ServiceAccounts("default").Create(i.Ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	i.Must(err)
	_, err = i.Client.CoreV1().Secrets("default").Create(i.Ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "login"}, StringData: map[string]string{"key": "k"}},
		metav1.CreateOptions{})
	i.Must(err)
	parameters := map[string]string{}
	for _, of := range []string{"provisioner", "controller-publish", "controller-expand"} {
		parameters["csi.storage.k8s.io/"+of+"-secret-name"], parameters["csi.storage.k8s.io/"+of+
			"-secret-namespace"] = "login", "default"
	}
	for name, mode := range map[string]storagev1.VolumeBindingMode{
		"fast": storagev1.VolumeBindingImmediate, "late": storagev1.VolumeBindingWaitForFirstConsumer,
	} {
		_, err = i.Client.StorageV1().StorageClasses().Create(i.Ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver, VolumeBindingMode: &mode,
			AllowVolumeExpansion: ptr.To(true), Parameters: parameters,
		}, metav1.CreateOptions{})
		i.Must(err)
	}
}

// Lives plays the life of a volume.
func (i *Installation) Lives(driver *csitest.Driver) {
	i.T.Helper()
	claims, pods, volumes := i.Client.CoreV1().PersistentVolumeClaims("default"), i.Client.CoreV1().Pods("default"),
		i.Client.CoreV1().PersistentVolumes()
	claim, err := claims.Create(i.Ctx, upstream.ClaimOf("c", "fast"), metav1.CreateOptions{})
	i.Must(err)
	upstream.Eventually(i.Ctx, i.T, func() string {
		if claim, err = claims.Get(i.Ctx, "c", metav1.GetOptions{}); err != nil || claim.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("the claim is not bound: %+v %v", claim.Status, err)
		}
		all, err := i.Client.StorageV1().CSIStorageCapacities("").List(i.Ctx, metav1.ListOptions{})
		if err != nil || len(all.Items) == 0 {
			return fmt.Sprint("nobody knows how much room there is: ", err)
		}
		return ""
	})
	i.Uses("p", "c")
	i.Attachments(1)
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	i.Must(upstream.Again(func() error {
		now, err := claims.Get(i.Ctx, "c", metav1.GetOptions{})
		if err == nil {
			now.Spec.Resources = claim.Spec.Resources
			_, err = claims.Update(i.Ctx, now, metav1.UpdateOptions{})
		}
		return err
	}))
	upstream.Eventually(i.Ctx, i.T, func() string {
		if v, err := volumes.Get(i.Ctx, claim.Spec.VolumeName, metav1.GetOptions{}); err != nil ||
			v.Spec.Capacity.Storage().String() != "2Gi" {
			return fmt.Sprintf("the volume has %v: %v", v.Spec.Capacity, err)
		}
		return ""
	})
	i.changes(driver.Name())
	i.Must(pods.Delete(i.Ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	i.Attachments(0)
	i.Must(claims.Delete(i.Ctx, "c", metav1.DeleteOptions{}))
	upstream.Eventually(i.Ctx, i.T, func() string {
		if v, err := volumes.Get(i.Ctx, claim.Spec.VolumeName, metav1.GetOptions{}); !apierrors.IsNotFound(err) ||
			len(driver.Volumes()) > 0 {
			return fmt.Sprintf("the volume is left: %+v %v, the driver has %d", v.Status, err, len(driver.Volumes()))
		}
		return ""
	})
}

// Uses creates a Pod on the node that uses a claim.
func (i *Installation) Uses(pod, claim string) {
	i.T.Helper()
	_, err := i.Client.CoreV1().Pods("default").Create(i.Ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod}, Spec: corev1.PodSpec{
			NodeName: "n1", AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}, metav1.CreateOptions{})
	i.Must(err)
}

// changes changes the attributes of the claim, and takes a snapshot of it and deletes it.
func (i *Installation) changes(driver string) {
	i.T.Helper()
	wait := func(object, path string) {
		i.T.Helper()
		i.Kubectl(i.Ctx, i.T, "", "wait", object, "--namespace=default", "--for=jsonpath="+path, "--timeout=1m")
	}
	i.Kubectl(i.Ctx, i.T, strings.ReplaceAll(changesWanted, "DRIVER", driver), "apply", "-f", "-")
	i.Kubectl(i.Ctx, i.T, "", "patch", "pvc/c", "--namespace=default", `--patch={"spec":{"volumeAttributesClassName":"gold"}}`)
	wait("pvc/c", "{.status.currentVolumeAttributesClassName}=gold")
	wait("volumesnapshot/s", "{.status.readyToUse}=true")
	i.Kubectl(i.Ctx, i.T, "", "delete", "volumesnapshot/s", "--namespace=default", "--timeout=1m")
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

// Attachments waits until there are so many, all of them attached.
func (i *Installation) Attachments(want int) {
	i.T.Helper()
	upstream.Eventually(i.Ctx, i.T, func() string {
		all, err := i.Client.StorageV1().VolumeAttachments().List(i.Ctx, metav1.ListOptions{})
		attached := slices.ContainsFunc(all.Items, func(a storagev1.VolumeAttachment) bool { return a.Status.Attached })
		if err != nil || len(all.Items) != want || attached != (want > 0) {
			return fmt.Sprintf("there are attachments %+v: %v", all.Items, err)
		}
		return ""
	})
}
