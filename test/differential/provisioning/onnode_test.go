package provisioning

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

const nodeKey = "topology.test/node"

// eachNode is a driver that runs on two nodes, with a provisioner beside it on each.
type eachNode struct {
	side
	t       *testing.T
	ctx     context.Context
	drivers map[string]*csitest.Driver
}

// TestNodeDeploymentIsKubernetes: beside a driver on each node, volplane and csi-provisioner with the same arguments
// make the same driver calls and the same writes; and each deletes, on the right node, what the other has created.
func TestNodeDeploymentIsKubernetes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	told := map[string]string{}
	for first, then := range map[string]string{"csi-provisioner": "volplane", "volplane": "csi-provisioner"} {
		e := &eachNode{side: differential.NewSide(t, first, topic{}), t: t, ctx: ctx, drivers: map[string]*csitest.Driver{}}
		for _, node := range []string{"n1", "n2"} {
			config := csitest.Full()
			config.NodeID, config.Segments = node, map[string]string{nodeKey: node}
			e.drivers[node] = csitest.Start(t, config)
		}
		e.Theirs(t, upstream.TheirBinder...)
		e.classes()
		stop := e.provisioners(first)
		e.claims()
		told[first] = e.tells()
		stop()
		e.provisioners(then)
		e.unclaims()
	}
	if diff := cmp.Diff(told["csi-provisioner"], told["volplane"]); diff != "" {
		t.Errorf("volplane differs from csi-provisioner (-theirs +ours):\n%s", diff)
	}
	t.Log(told["volplane"])
}

// provisioners starts a program on each node, with the same arguments.
func (e *eachNode) provisioners(name string) (stop func()) {
	e.t.Helper()
	var all []*upstream.Program
	for _, node := range []string{"n1", "n2"} {
		e.t.Setenv("NODE_NAME", node)
		e.t.Setenv("NAMESPACE", "default")
		var args []string
		if name == "volplane" {
			args = []string{"csi-provisioner"}
		}
		all = append(all, upstream.Start(e.t, name, append(args, "--csi-address="+e.drivers[node].Socket, "--node-deployment",
			"--node-deployment-base-delay=200ms", "--node-deployment-max-delay=1s", "--strict-topology",
			"--immediate-topology=false", "--enable-capacity", "--capacity-ownerref-level=-1", "--capacity-poll-interval=1s",
			"--kube-api-qps=5000", "--kube-api-burst=5000", "--kubeconfig="+e.Server.AdminKubeconfig())...))
	}
	return func() {
		for _, p := range all {
			p.Kill()
		}
	}
}

func (e *eachNode) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *eachNode) classes() {
	e.t.Helper()
	fast, late := storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	only := []corev1.TopologySelectorTerm{{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: nodeKey, Values: []string{"n2"}}},
	}}
	for _, c := range []storagev1.StorageClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, VolumeBindingMode: &fast},
		{ObjectMeta: metav1.ObjectMeta{Name: "late"}, VolumeBindingMode: &late, Parameters: map[string]string{"tier": "1"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "only"}, VolumeBindingMode: &fast, AllowedTopologies: only},
	} {
		c.Provisioner = e.drivers["n1"].Name()
		_, err := e.Client.StorageV1().StorageClasses().Create(e.ctx, &c, metav1.CreateOptions{})
		e.must(err)
	}
}

// claims makes claims, and waits until all are bound: some for one node each, which the scheduler or the class has
// chosen, and some that either node may take.
func (e *eachNode) claims() {
	e.t.Helper()
	claims := e.Client.CoreV1().PersistentVolumeClaims("default")
	for name, c := range map[string]struct{ class, node string }{
		"late-1": {"late", "n1"}, "late-2": {"late", "n2"}, "only": {class: "only"}, "any-1": {class: "fast"},
		"any-2": {class: "fast"}, "any-3": {class: "fast"}, "any-4": {class: "fast"}, "any-5": {class: "fast"},
	} {
		claim := upstream.ClaimOf(name, c.class)
		if c.node != "" {
			claim.Annotations = map[string]string{volume.AnnSelectedNode: c.node}
		}
		_, err := claims.Create(e.ctx, claim, metav1.CreateOptions{})
		e.must(err)
	}
	upstream.Eventually(e.ctx, e.t, func() string {
		all, err := claims.List(e.ctx, metav1.ListOptions{})
		e.must(err)
		for _, c := range all.Items {
			if c.Status.Phase != corev1.ClaimBound {
				return "claim " + c.Name + " is " + string(c.Status.Phase)
			}
		}
		return ""
	})
}

// tells returns the calls of the drivers, and what was written. For claims that any node may get, the node is called X.
func (e *eachNode) tells() string {
	e.t.Helper()
	var out []string
	for node, d := range e.drivers {
		for _, call := range d.Calls() {
			r, is := call.Request.(*csipb.CreateVolumeRequest)
			if !is {
				continue
			}
			v, err := e.Client.CoreV1().PersistentVolumes().Get(e.ctx, r.Name, metav1.GetOptions{})
			e.must(err)
			claim, err := e.Client.CoreV1().PersistentVolumeClaims("default").Get(e.ctx, v.Spec.ClaimRef.Name,
				metav1.GetOptions{})
			e.must(err)
			line := fmt.Sprintf("%s: on %s: %v; selected %s; affinity %v; finalizers %v; by %s", claim.Name, node, r,
				claim.Annotations[volume.AnnSelectedNode], v.Spec.NodeAffinity.Required.NodeSelectorTerms,
				slices.Sorted(slices.Values(v.Finalizers)),
				v.Annotations[volume.AnnProvisionedBy])
			line = strings.ReplaceAll(line, string(claim.UID), "UID")
			if strings.HasPrefix(claim.Name, "any") {
				line = strings.NewReplacer(node, "X", "  ", " ").Replace(line)
			}
			out = append(out, strings.Join(strings.Fields(line), " "))
		}
	}
	out = append(out, e.capacities()...)
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// capacities returns the CSIStorageCapacities of the nodes, once all exist.
func (e *eachNode) capacities() []string {
	e.t.Helper()
	var out []string
	upstream.Eventually(e.ctx, e.t, func() string {
		all, err := e.Client.StorageV1().CSIStorageCapacities("default").List(e.ctx, metav1.ListOptions{})
		e.must(err)
		out = nil
		for _, c := range all.Items {
			out = append(out, fmt.Sprint("capacity of ", c.StorageClassName, " ", c.NodeTopology.MatchLabels, " ", c.Labels))
		}
		if len(out) != len(e.drivers) {
			return fmt.Sprint("capacities: ", out)
		}
		return ""
	})
	return out
}

// unclaims deletes the claims, and waits until nothing is left. No driver may be called to delete a volume of the
// other node.
func (e *eachNode) unclaims() {
	e.t.Helper()
	where := map[string]string{}
	for node, d := range e.drivers {
		for _, v := range d.Volumes() {
			where[v.ID] = node
		}
	}
	claims := e.Client.CoreV1().PersistentVolumeClaims("default")
	all, err := claims.List(e.ctx, metav1.ListOptions{})
	e.must(err)
	for _, c := range all.Items {
		if err := claims.Delete(e.ctx, c.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			e.must(err)
		}
	}
	upstream.Eventually(e.ctx, e.t, func() string {
		volumes, err := e.Client.CoreV1().PersistentVolumes().List(e.ctx, metav1.ListOptions{})
		e.must(err)
		left := len(volumes.Items)
		for _, d := range e.drivers {
			left += len(d.Volumes())
		}
		if left > 0 {
			return fmt.Sprint(left, " volumes are left")
		}
		return ""
	})
	for node, d := range e.drivers {
		for _, call := range d.Calls() {
			if r, is := call.Request.(*csipb.DeleteVolumeRequest); is && where[r.VolumeId] != node {
				e.t.Errorf("node %s is asked to delete %s, which is on %q", node, r.VolumeId, where[r.VolumeId])
			}
		}
	}
}
