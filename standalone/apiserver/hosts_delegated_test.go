package apiserver_test

import (
	"fmt"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
)

// TestAHostAndItsDelegatedDrivers: a host to which a driver is delegated serves all its volumes, exactly as their
// classes require, and may hold its leases and write its intents. It does none of this for a driver that is delegated
// to another.
func TestAHostAndItsDelegatedDrivers(t *testing.T) {
	t.Parallel()
	c := newHostCluster(t)
	secret := &corev1.SecretReference{Namespace: "kube-system", Name: "s"}
	for i, row := range []struct {
		argues, class, selected, node string
		change                        func(*corev1.PersistentVolume)
		want                          string
	}{
		{"a claim for its node", "shared", "n1", "", nil, ""},
		{"a claim for another node", "shared", "n2", "", nil, ""},
		{"as a volume of its node only", "shared", "n1", "n1", nil, "is not what claim"},
		{"a Secret to publish with", "shared", "n1", "", func(v *corev1.PersistentVolume) {
			v.Spec.CSI.NodePublishSecretRef = secret
		}, "is not what claim"},
		{"a claim of another driver", "own", "n1", "", func(v *corev1.PersistentVolume) {
			v.Spec.CSI.Driver = sharedDriver
		}, "gets no volume"},
		{"a driver that is delegated to another node", "lent", "n1", "", nil, "is neither node-local nor delegated"},
		{"data of another volume", "shared", "n1", "", func(v *corev1.PersistentVolume) {
			v.Spec.CSI.VolumeHandle = "h-d0"
		}, "it has the handle of volume"},
		{"a driver that is delegated to nobody", "network", "n1", "", nil, "is neither node-local nor delegated"},
	} {
		claim := c.claim(fmt.Sprintf("d%d", i), row.class, row.selected)
		v := c.object(claim, row.node)
		if row.change != nil {
			row.change(v)
		}
		c.expect(row.argues, c.create(c.n1, v), row.want)
	}
	c.delegatedObjects()
	c.leases()
	c.driverLogs()
}

// delegatedObjects checks what is written of claims, attachments and capacity.
func (c *hostCluster) delegatedObjects() {
	ctx := c.t.Context()
	for driver, want := range map[string]string{
		sharedDriver: "", lentDriver: "is neither node-local nor delegated", ownDriver: `was not created on the node`,
	} {
		class := driver[:len(driver)-len(".example.com")]
		claim := c.claim("of-"+class, class, "n2")
		scope := map[string]string{ownDriver: "n2"}[driver]
		v := c.object(claim, scope)
		if err := c.create(c.admin, v); err != nil {
			c.t.Fatal(err)
		}
		must(c.admin.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: class},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: driver, NodeName: "n2", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
			},
		}, metav1.CreateOptions{}))(c.t)
		_, err := c.n1.StorageV1().VolumeAttachments().Patch(ctx, class, types.MergePatchType,
			[]byte(`{"status":{"attached":true}}`), metav1.PatchOptions{}, "status")
		c.expect("an attachment of "+driver, err, want)
		_, err = c.n1.CoreV1().PersistentVolumes().Patch(ctx, v.Name, types.MergePatchType,
			[]byte(`{"spec":{"capacity":{"storage":"3Gi"}}}`), metav1.PatchOptions{})
		c.expect("the size of a volume of "+driver, err, want)
		if driver == ownDriver {
			continue
		}
		_, err = c.n1.StorageV1().CSIStorageCapacities("kube-system").Create(ctx, &storagev1.CSIStorageCapacity{
			ObjectMeta:       metav1.ObjectMeta{GenerateName: "csisc-", Labels: map[string]string{volume.LabelDriver: driver}},
			StorageClassName: class, Capacity: ptr.To(resource.MustParse("1Gi")), NodeTopology: &metav1.LabelSelector{},
		}, metav1.CreateOptions{})
		c.expect("what "+driver+" has free", err, want)
	}
}

// leases checks which leases a host may hold.
func (c *hostCluster) leases() {
	const refused = "is not of a driver"
	for lease, want := range map[string]string{
		volume.ProvisionerLease(sharedDriver): "", volume.AttacherLease(sharedDriver): "",
		volume.ResizerLease(sharedDriver): "", volume.AttacherLease(lentDriver): refused,
		volume.HealthLease(sharedDriver): "", volume.HealthLease(lentDriver): refused,
		volume.ProvisionerLease(networkDriver): refused, volume.ResizerLease(ownDriver): refused, "kube-scheduler": refused,
	} {
		all := c.n1.CoordinationV1().Leases(volume.NamespaceSystem)
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: lease}}
		_, err := all.Create(c.t.Context(), l, metav1.CreateOptions{})
		c.expect("lease "+lease+" is made", err, want)
		if want != "" {
			must(c.admin.CoordinationV1().Leases(volume.NamespaceSystem).Create(c.t.Context(), l, metav1.CreateOptions{}))(c.t)
		}
		now := must(all.Get(c.t.Context(), lease, metav1.GetOptions{}))(c.t)
		now.Spec.HolderIdentity = ptr.To("n1")
		_, err = all.Update(c.t.Context(), now, metav1.UpdateOptions{})
		c.expect("lease "+lease+" is taken", err, want)
	}
	_, err := c.n1.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(c.t.Context(),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{})
	c.expect("a lease of another namespace", err, "cannot create")
}

// driverLogs checks which drivers' intents a host may write.
func (c *hostCluster) driverLogs() {
	ctx, maps := c.t.Context(), c.n1.CoreV1().ConfigMaps(volume.NamespaceSystem)
	for driver, want := range map[string]string{
		sharedDriver: "", lentDriver: "is not of a driver", networkDriver: "is not of a driver",
	} {
		name := identity.DriverIntents(driver) + "-1"
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err := maps.Create(ctx, object, metav1.CreateOptions{})
		c.expect("intents of "+driver, err, want)
		if want != "" {
			must(c.admin.CoreV1().ConfigMaps(volume.NamespaceSystem).Create(ctx, object, metav1.CreateOptions{}))(c.t)
		}
		if want != "" {
			want = "cannot delete"
		}
		c.expect("intents of "+driver+" go", maps.Delete(ctx, name, metav1.DeleteOptions{}), want)
	}
	shared := volume.LabelIntents + "=" + identity.DriverIntents(sharedDriver)
	_, err := maps.List(ctx, metav1.ListOptions{LabelSelector: shared})
	c.expect("intents of a driver are read", err, "")
	for _, driver := range []string{lentDriver, networkDriver} {
		theirs := volume.LabelIntents + "=" + identity.DriverIntents(driver)
		_, err := maps.List(ctx, metav1.ListOptions{LabelSelector: theirs})
		c.expect("intents of "+driver+" are read", err, "cannot list")
	}
	_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: identity.DriverIntents(sharedDriver) + "-01",
	}}, metav1.CreateOptions{})
	c.expect("a name that no log has", err, "is not of their intent log")
}
