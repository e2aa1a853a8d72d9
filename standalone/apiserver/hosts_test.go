package apiserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/standalonetest"
)

const (
	ownDriver     = "own.example.com"
	networkDriver = "network.example.com"
	sharedDriver  = "shared.example.com"
	lentDriver    = "lent.example.com"
)

// hostCluster is an API server with the nodes n1 and n2 and four drivers: a node-local one, one that only the control
// plane calls, one that is delegated to n1, too, and one that is delegated to n2.
type hostCluster struct {
	t     *testing.T
	admin kubernetes.Interface
	// agent is the agent of n1, and n1 the client of the controllers of its host.
	agent, n1 kubernetes.Interface
}

func newHostCluster(t *testing.T) *hostCluster {
	s := standalonetest.Start(t, app.RBAC()...)
	agent := s.ClientConfig(identity.UserPrefix+"n1", identity.NodesGroup)
	host := rest.CopyConfig(agent)
	host.Impersonate = rest.ImpersonationConfig{
		UserName: identity.HostPrefix + "n1", Groups: []string{identity.HostsGroup},
	}
	c := &hostCluster{
		t: t, admin: kubernetes.NewForConfigOrDie(s.AdminConfig()), agent: kubernetes.NewForConfigOrDie(agent),
		n1: kubernetes.NewForConfigOrDie(host),
	}
	ctx := t.Context()
	for name, where := range map[string]string{
		ownDriver: volume.ControllersOnNodes, networkDriver: "", sharedDriver: volume.Delegation([]string{"n3", "n1"}),
		lentDriver: volume.Delegation([]string{"n2"}),
	} {
		d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if where != "" {
			d.Annotations = map[string]string{volume.AnnControllers: where}
		}
		must(c.admin.StorageV1().CSIDrivers().Create(ctx, d, metav1.CreateOptions{}))(t)
		must(c.admin.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: strings.TrimSuffix(name, ".example.com")}, Provisioner: name,
			VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), AllowVolumeExpansion: ptr.To(true),
		}, metav1.CreateOptions{}))(t)
	}
	for _, n := range []string{"n1", "n2"} {
		must(c.admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: n, Labels: map[string]string{"disk": n},
		}}, metav1.CreateOptions{}))(t)
		must(c.admin.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: n},
			Spec: storagev1.CSINodeSpec{
				Drivers: []storagev1.CSINodeDriver{{Name: ownDriver, NodeID: n, TopologyKeys: []string{"disk"}}},
			},
		}, metav1.CreateOptions{}))(t)
	}
	// The roles are known a moment after the start.
	granted := func(ctx context.Context) (bool, error) {
		_, err := c.n1.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
		return err == nil, nil
	}
	if err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, granted); err != nil {
		t.Fatalf("the controllers of a host may not read claims: %v", err)
	}
	return c
}

// must returns a function that fails the test if the call has failed.
func must[T any](o T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
}

// claim creates a claim of a class with a selected node.
func (c *hostCluster) claim(name, class, node string) *corev1.PersistentVolumeClaim {
	c.t.Helper()
	return must(c.admin.CoreV1().PersistentVolumeClaims("default").Create(c.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			volume.AnnSelectedNode: node, volume.AnnStorageProvisioner: class + ".example.com",
		}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}, metav1.CreateOptions{}))(c.t)
}

// object returns what the provisioner of a node writes for a claim.
func (c *hostCluster) object(
	claim *corev1.PersistentVolumeClaim, node string, change ...func(*corev1.PersistentVolume),
) *corev1.PersistentVolume {
	c.t.Helper()
	class := must(c.admin.StorageV1().StorageClasses().Get(c.t.Context(), *claim.Spec.StorageClassName,
		metav1.GetOptions{}))(c.t)
	plan := provision.Claim(provision.ClaimFacts{
		Claim: claim, Class: class, Driver: class.Provisioner, Reachable: true, Scope: volume.Scope{Node: node},
		Partial: true,
	})
	if plan.Intent == nil {
		c.t.Fatalf("no volume is made for claim %s: %s", claim.Name, plan.Because.Message)
	}
	a := provision.Answer{Handle: "h-" + claim.Name}
	if class.Provisioner == ownDriver {
		a.Segments = []topology.Segment{{"disk": node}}
	}
	v := provision.Object(plan.Intent, a, "")
	for _, f := range change {
		f(v)
	}
	return v
}

func (c *hostCluster) create(by kubernetes.Interface, v *corev1.PersistentVolume) error {
	_, err := by.CoreV1().PersistentVolumes().Create(c.t.Context(), v, metav1.CreateOptions{})
	return err
}

// TestAHostMakesItsOwnVolumesOnly: a compromised node can create volumes of its own node-local drivers for claims that
// were assigned to it, and nothing else.
func TestAHostMakesItsOwnVolumesOnly(t *testing.T) {
	t.Parallel()
	c := newHostCluster(t)
	secret := &corev1.SecretReference{Namespace: "kube-system", Name: "s"}
	for i, row := range []struct {
		argues, class, selected, node string
		change                        func(*corev1.PersistentVolume)
		want                          string
	}{
		{"what its class asks for", "own", "n1", "n1", nil, ""},
		{"it keeps what the driver says of it", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.CSI.VolumeAttributes = map[string]string{"path": "/x"}
			v.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi")
		}, ""},
		{"a claim of another node", "own", "n2", "n1", nil, `is for node "n2"`},
		{"in the name of another node", "own", "n2", "n2", nil, `was not created on the node`},
		{"in nobody's name", "own", "n1", "", nil, `was not created on the node`},
		{"a driver that the control plane calls", "network", "n1", "n1", nil, "is neither node-local nor delegated"},
		{"a driver that its claim does not ask for", "network", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.CSI.Driver = ownDriver
		}, "gets no volume"},
		{"no CSI driver", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}}
		}, "is not a CSI volume"},
		{"a Secret to publish with", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.CSI.NodePublishSecretRef = secret
		}, "is not what claim"},
		{"a Secret to stage with", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.CSI.NodeStageSecretRef = secret
		}, "is not what claim"},
		{"a Secret to delete with", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Annotations[volume.AnnDeletionSecretName], v.Annotations[volume.AnnDeletionSecretNamespace] = "s", "kube-system"
		}, "is not what claim"},
		{"another policy", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, "is not what claim"},
		{"a claim's that does not exist", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef.Name = "other"
		}, "does not exist"},
		{"any claim's of that name", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef.UID, v.Spec.PersistentVolumeReclaimPolicy = "", corev1.PersistentVolumeReclaimRetain
		}, "does not exist with the UID"},
		{"one to retain, of a claim that may come", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef.Name, v.Spec.ClaimRef.UID = "later", ""
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, "does not exist"},
		{"data of another volume", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.CSI.VolumeHandle = "h-c0"
		}, "it has the handle of volume"},
		{"accessible from everywhere", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = nil
		}, "is not accessible from disk=n1 alone"},
		{"accessible from another node", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = topology.Affinity([]topology.Segment{{"disk": "n2"}})
		}, "is not accessible from disk=n1 alone"},
		{"accessible from another node, too", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = topology.Affinity([]topology.Segment{{"disk": "n1"}, {"disk": "n2"}})
		}, "is not accessible from disk=n1 alone"},
		{"nobody's", "own", "n1", "n1", func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }, "has no claim"},
		{"one to retain, whose claim is gone", "own", "n1", "n1", func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef.UID, v.Spec.PersistentVolumeReclaimPolicy = "gone", corev1.PersistentVolumeReclaimRetain
		}, "does not exist with the UID"},
		{"another name", "own", "n1", "n1", func(v *corev1.PersistentVolume) { v.Name = "data" }, "is not what claim"},
	} {
		claim := c.claim(fmt.Sprintf("c%d", i), row.class, row.selected)
		v := c.object(claim, row.node)
		if row.change != nil {
			row.change(v)
		}
		c.expect(row.argues, c.create(c.n1, v), row.want)
	}
}

// TestASavedVolumeIsNoRefusal: a host deletes a refused volume, so a volume that has its object already is not refused,
// whatever has changed since.
func TestASavedVolumeIsNoRefusal(t *testing.T) {
	t.Parallel()
	c := newHostCluster(t)
	claim := c.claim("data", "own", "n1")
	v := c.object(claim, "n1")
	c.expect("it is saved", c.create(c.n1, v.DeepCopy()), "")
	claims := c.admin.CoreV1().PersistentVolumeClaims("default")
	for _, change := range []func() error{
		func() error {
			claim.Annotations[volume.AnnSelectedNode] = "n2"
			_, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{})
			return err
		},
		func() error {
			return claims.Delete(t.Context(), claim.Name, metav1.DeleteOptions{})
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := c.create(c.n1, v.DeepCopy()); !apierrors.IsAlreadyExists(err) {
			t.Errorf("it is saved again: %v", err)
		}
	}
}

// TestANodeKeepsItsPlace: a node cannot label itself into the segment of another node's volumes, not even while it
// claims other topology keys for its driver.
func TestANodeKeepsItsPlace(t *testing.T) {
	t.Parallel()
	c := newHostCluster(t)
	ctx := t.Context()
	label := func(labels string, sub ...string) error {
		_, err := c.agent.CoreV1().Nodes().Patch(ctx, "n1", types.MergePatchType, []byte(`{"metadata":{"labels":`+labels+`}}`),
			metav1.PatchOptions{}, sub...)
		return err
	}
	c.expect("a label that is no topology", label(`{"team":"red"}`), "")
	c.expect("a place of its own", label(`{"disk":"n9"}`), "")
	const moves = "may not move to disk=n2, where node n2 has volumes"
	c.expect("the place of another", label(`{"disk":"n2"}`), moves)
	c.expect("the same with its status", label(`{"disk":"n2"}`, "status"), moves)
	c.expect("no place", label(`{"disk":null}`), "may not take back that it is in disk=n9")
	_, err := c.agent.StorageV1().CSINodes().Patch(ctx, "n1", types.MergePatchType, []byte(`{"spec":{"drivers":[]}}`),
		metav1.PatchOptions{})
	c.expect("its driver goes", err, "")
	c.expect("the place of another, without the driver", label(`{"disk":"n2"}`), moves)
	_, err = c.admin.CoreV1().Nodes().Patch(ctx, "n1", types.MergePatchType, []byte(`{"metadata":{"labels":{"disk":null}}}`),
		metav1.PatchOptions{})
	c.expect("a person lets it join anew", err, "")
	c.expect("it shares the place of another", label(`{"disk":"n2"}`), "")
	c.expect("it stays there", label(`{"team":"blue"}`), "")
}

// expect fails the test unless a request was admitted, or refused with this text.
func (c *hostCluster) expect(argues string, err error, want string) {
	c.t.Helper()
	switch {
	case want == "" && err != nil:
		c.t.Errorf("%s: %v", argues, err)
	case want != "" && (!apierrors.IsForbidden(err) && !apierrors.IsConflict(err) || !strings.Contains(err.Error(), want)):
		c.t.Errorf("%s: %v, want a refusal that says %q", argues, err, want)
	}
}

// attributes checks changes of the class of a volume's attributes.
func (c *hostCluster) attributes(patch func(v, body string) error, mine string) {
	for _, driver := range []string{ownDriver, networkDriver} {
		must(c.admin.StorageV1().VolumeAttributesClasses().Create(c.t.Context(), &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: strings.TrimSuffix(driver, ".example.com")},
			DriverName: driver, Parameters: map[string]string{"k": "v"},
		}, metav1.CreateOptions{}))(c.t)
	}
	c.expect("its volume's attributes", patch(mine, `{"spec":{"volumeAttributesClassName":"own"}}`), "")
	c.expect("attributes of another driver", patch(mine, `{"spec":{"volumeAttributesClassName":"network"}}`),
		"is for driver network.example.com")
	c.expect("attributes that do not exist", patch(mine, `{"spec":{"volumeAttributesClassName":"none"}}`), "does not exist")
}

// TestAHostTouchesNothingElse: objects of other nodes and of users stay unchanged.
func TestAHostTouchesNothingElse(t *testing.T) {
	t.Parallel()
	c := newHostCluster(t)
	ctx := t.Context()
	mine, theirs := c.claim("mine", "own", "n1"), c.claim("theirs", "own", "n2")
	mineV, theirsV := c.object(mine, "n1"), c.object(theirs, "n2")
	for _, v := range []*corev1.PersistentVolume{mineV, theirsV} {
		if err := c.create(c.admin, v); err != nil {
			t.Fatal(err)
		}
	}
	patch := func(v, body string) error {
		_, err := c.n1.CoreV1().PersistentVolumes().Patch(ctx, v, types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	c.expect("its volume's finalizers", patch(mineV.Name, `{"metadata":{"finalizers":["kubernetes.io/pv-protection",`+
		`"external-attacher/own-example-com"]}}`), "")
	c.expect("its volume's size", patch(mineV.Name, `{"spec":{"capacity":{"storage":"3Gi"}},"metadata":{"annotations":{`+
		`"volume.alpha.kubernetes.io/pre-resize-capacity":"1Gi"}}}`), "")
	c.attributes(patch, mineV.Name)
	c.expect("the finalizer of the protection", patch(mineV.Name, `{"metadata":{"finalizers":null}}`), "changes more")
	c.expect("whose its volume is", patch(mineV.Name, `{"spec":{"claimRef":{"uid":"x"}}}`), "changes more")
	c.expect("its volume's policy", patch(mineV.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`),
		"changes more")
	c.expect("where its volume was made", patch(mineV.Name,
		`{"metadata":{"annotations":{"volplane.dev/provisioned-on":"n2"}}}`), "changes more")
	c.expect("its volume is lost", patch(mineV.Name, `{"metadata":{"annotations":{"volplane.dev/lost-with":"n1"}}}`),
		"changes more")
	c.expect("another node's volume", patch(theirsV.Name, `{"spec":{"capacity":{"storage":"3Gi"}}}`), "was not created on")
	pvs := c.n1.CoreV1().PersistentVolumes()
	c.expect("a volume in use is deleted", pvs.Delete(ctx, mineV.Name, metav1.DeleteOptions{}), "is not to be deleted")
	c.expect("another's is deleted", pvs.Delete(ctx, theirsV.Name, metav1.DeleteOptions{}), "is not to be deleted")
	err := pvs.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	c.expect("all are deleted", err, "deletecollection")

	c.claims(mine, theirs)
	c.attachments(mineV, theirsV)
	c.capacities()
	c.logs()
}

func (c *hostCluster) claims(mine, theirs *corev1.PersistentVolumeClaim) {
	ctx, pvcs := c.t.Context(), c.n1.CoreV1().PersistentVolumeClaims("default")
	change := func(claim *corev1.PersistentVolumeClaim, f func(*corev1.PersistentVolumeClaim)) error {
		now := must(c.admin.CoreV1().PersistentVolumeClaims("default").Get(ctx, claim.Name, metav1.GetOptions{}))(c.t)
		f(now)
		_, err := pvcs.Update(ctx, now, metav1.UpdateOptions{})
		return err
	}
	protect := func(c *corev1.PersistentVolumeClaim) { c.Finalizers = append(c.Finalizers, volume.FinalizerCloning) }
	labelled := func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"team": "red"} }
	moved := func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n2" }
	given := func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, volume.AnnSelectedNode) }
	c.expect("its claim is cloned", change(mine, protect), "")
	c.expect("another's is cloned", change(theirs, protect), `is for node "n2"`)
	c.expect("a claim gets a label", change(mine, labelled), "changes more")
	c.expect("a claim is handed to another node", change(mine, moved), "changes more")
	c.expect("another's claim is taken", change(theirs, given), `is for node "n2"`)
	refused := func(on string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			given(c)
			c.Annotations[volume.AnnRefusedOn] = on
		}
	}
	c.expect("a claim is kept from another node", change(mine, refused("n2")), "changes more")
	c.expect("a claim is given back, because it was refused", change(mine, refused("n1")), "")
	c.expect("and once more, by somebody without the claim", change(mine, refused("n1,n1")), `is for node ""`)
	now := must(c.admin.CoreV1().PersistentVolumeClaims("default").Get(ctx, "mine", metav1.GetOptions{}))(c.t)
	now.Annotations[volume.AnnSelectedNode] = "n1"
	must(c.admin.CoreV1().PersistentVolumeClaims("default").Update(ctx, now, metav1.UpdateOptions{}))(c.t)
	c.expect("a claim is given back", change(mine, given), "")
	c.expect("a claim is deleted", pvcs.Delete(ctx, "mine", metav1.DeleteOptions{}), "cannot delete")
	_, err := pvcs.Patch(ctx, theirs.Name, types.MergePatchType, []byte(`{"status":{"capacity":{"storage":"9Gi"}}}`),
		metav1.PatchOptions{}, "status")
	c.expect("another's status", err, `is for node "n2"`)
}

func (c *hostCluster) attachments(mine, theirs *corev1.PersistentVolume) {
	ctx := c.t.Context()
	for name, v := range map[string]*corev1.PersistentVolume{"mine": mine, "theirs": theirs} {
		must(c.admin.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: ownDriver, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
			},
		}, metav1.CreateOptions{}))(c.t)
	}
	patch := func(name string, sub ...string) error {
		_, err := c.n1.StorageV1().VolumeAttachments().Patch(ctx, name, types.MergePatchType,
			[]byte(`{"status":{"attached":true}}`), metav1.PatchOptions{}, sub...)
		return err
	}
	c.expect("its volume is attached", patch("mine", "status"), "")
	c.expect("another's volume is attached", patch("theirs", "status"), "was not created on the node")
	_, err := c.n1.StorageV1().VolumeAttachments().Patch(ctx, "mine", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"volplane.dev/lost-with":"n1"}}}`), metav1.PatchOptions{})
	c.expect("an attachment is lost", err, "changes more")
	err = c.n1.StorageV1().VolumeAttachments().Delete(ctx, "mine", metav1.DeleteOptions{})
	c.expect("an attachment is deleted", err, "cannot delete")
}

func (c *hostCluster) capacities() {
	object := func(driver, disk string) *storagev1.CSIStorageCapacity {
		return &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{
				GenerateName: "csisc-", Labels: map[string]string{volume.LabelDriver: driver},
			},
			StorageClassName: "own", Capacity: ptr.To(resource.MustParse("1Gi")),
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"disk": disk}},
		}
	}
	misled := object(sharedDriver, "n2")
	everywhere := object(ownDriver, "n1")
	everywhere.NodeTopology = &metav1.LabelSelector{}
	for _, row := range []struct {
		argues string
		object *storagev1.CSIStorageCapacity
		want   string
	}{
		{"what is free on it", object(ownDriver, "n1"), ""},
		{"what is free elsewhere", object(ownDriver, "n2"), "and the node is in disk=n1"},
		{"what is free everywhere", everywhere, "not about labels of the node"},
		{"what is free elsewhere, by the class alone", misled, "and its class own is for driver own.example.com"},
		{"what another driver has free", object(networkDriver, "n1"), "is neither node-local nor delegated"},
	} {
		_, err := c.n1.StorageV1().CSIStorageCapacities("kube-system").Create(c.t.Context(), row.object,
			metav1.CreateOptions{})
		c.expect(row.argues, err, row.want)
	}
}

// logs checks who may read and write the intents of a node.
func (c *hostCluster) logs() {
	ctx, maps := c.t.Context(), c.n1.CoreV1().ConfigMaps(volume.NamespaceSystem)
	create := func(name string) error {
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	own, other := identity.HostIntents("n1"), identity.HostIntents("n2")
	c.expect("its intents", create(own+"-1"), "")
	c.expect("another node's intents", create(other+"-1"), "is not of their intent log")
	c.expect("the revocations", create("volplane-revoked-nodes"), "is not of their intent log")
	list := func(label string) error {
		_, err := maps.List(ctx, metav1.ListOptions{LabelSelector: label})
		return err
	}
	c.expect("its intents are read", list(volume.LabelIntents+"="+own), "")
	c.expect("another's are read", list(volume.LabelIntents+"="+other), "cannot list")
	c.expect("all are read", list(""), "cannot list")
	c.expect("its intents are deleted", maps.Delete(ctx, own+"-1", metav1.DeleteOptions{}), "")
	c.expect("another's are deleted", maps.Delete(ctx, other+"-1", metav1.DeleteOptions{}), "cannot delete")
	_, err := c.n1.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
	c.expect("Secrets are read", err, "cannot list")
}

// TestWhoIsAHost: an agent can act as the controllers of its own host only, and no other user can.
func TestWhoIsAHost(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t, app.RBAC()...)
	for _, row := range []struct {
		user, group, as, in string
		want                bool
	}{
		{"system:node:n1", identity.NodesGroup, "system:volplane:host:n1", identity.HostsGroup, true},
		{"system:node:n1", identity.NodesGroup, "system:volplane:host:n2", identity.HostsGroup, false},
		{"system:node:n1", identity.NodesGroup, "system:volplane:host:n1", "system:masters", false},
		{"system:node:n1", identity.NodesGroup, "system:volplane:provisioner", identity.HostsGroup, false},
		{"system:node:n1", "people", "system:volplane:host:n1", identity.HostsGroup, false},
		{"somebody", "people", "system:volplane:host:n1", identity.HostsGroup, false},
	} {
		config := s.ClientConfig(row.user, row.group)
		config.Impersonate = rest.ImpersonationConfig{UserName: row.as, Groups: []string{row.in}}
		body, err := kubernetes.NewForConfigOrDie(config).Discovery().RESTClient().Get().AbsPath("/version").
			DoRaw(t.Context())
		if got := err == nil && json.Valid(body); got != row.want {
			t.Errorf("%s of %s acts as %s of %s: %v (%v), want %v", row.user, row.group, row.as, row.in, got, err, row.want)
		}
	}
}
