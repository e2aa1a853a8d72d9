package kubelets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/plugin"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestNodeIsKubelet creates the same Pods on a node with a kubelet and on a node with volplane's agent, in
// one cluster, and compares all calls of the drivers.
func TestNodeIsKubelet(t *testing.T) {
	c := cluster.Start(t)
	c.Controllers(t, "persistentvolume-attach-detach-controller")
	ours, theirs := newComparedNode(t, c, "ours"), newComparedNode(t, c, "theirs")
	ours.root = agent(t, c, "ours")
	theirs.root = c.Kubelet(t, "theirs")
	var sockets []string
	for _, l := range []*comparedNode{ours, theirs} {
		for _, name := range []string{plain, informed, grouping, loose} {
			sockets = append(sockets, l.serve(name))
		}
	}
	s := side{Name: "cluster", Server: c, Client: c.Client}
	s.Ours(t, dial(t, sockets[:3]...), "attacher")
	ctx, cancel := context.WithTimeout(t.Context(), cluster.MountLimit)
	defer cancel()
	if err := createObjects(ctx, c); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*comparedNode{ours, theirs} {
		upstream.Eventually(ctx, t, func() string { return l.missingDrivers(ctx) })
		if err := l.createPods(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []*comparedNode{ours, theirs} {
		upstream.Eventually(ctx, t, func() string { return l.unmountedPods(ctx) })
	}
	names := map[*comparedNode]*strings.Replacer{}
	for _, l := range []*comparedNode{ours, theirs} {
		names[l] = l.placeholders(ctx)
		if err := l.deletePods(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []*comparedNode{ours, theirs} {
		upstream.Eventually(ctx, t, func() string { return l.left(ctx) + below(t, l.root) })
	}
	compareCalls(t, nodeRows(), ours.calls.mustLines(t, names[ours]), theirs.calls.mustLines(t, names[theirs]))
}

// compareCalls reports calls that only one side makes without a known reason, and reasons that no difference uses any
// more.
func compareCalls(t *testing.T, rows []row, ours, theirs []string) {
	t.Helper()
	used := map[string]bool{}
	d := difference{
		Ours: ours, Theirs: theirs, OnlyOurs: differential.Without(ours, theirs),
		OnlyTheirs: differential.Without(theirs, ours),
	}
	for who, lines := range map[string][]string{"volplane": d.OnlyOurs, "the kubelet": d.OnlyTheirs} {
		for _, l := range lines {
			i := slices.IndexFunc(rows, func(r row) bool { return r.Explains(d, l) })
			if i < 0 {
				t.Errorf("only %s: %s", who, l)
				continue
			}
			used[rows[i].Reason] = true
		}
	}
	for _, r := range rows {
		if !used[r.Reason] {
			t.Errorf("nothing differs any more because %s", r.Reason)
		}
	}
	t.Logf("%d calls, %d of them differ", len(ours), len(d.OnlyOurs))
}

// comparedNode is one of the two nodes, with its drivers and Pods.
type comparedNode struct {
	t     *testing.T
	c     *cluster.Cluster
	node  string
	root  string
	calls callLog
}

// newComparedNode returns one of the two nodes, without a directory yet.
func newComparedNode(t *testing.T, c *cluster.Cluster, node string) *comparedNode {
	return &comparedNode{t: t, c: c, node: node}
}

func (l *callLog) mustLines(t *testing.T, names *strings.Replacer) []string {
	t.Helper()
	out, err := l.lines(names)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// agent runs volplane's node agent until the test ends, and returns its root directory.
func agent(t *testing.T, c *cluster.Cluster, node string) string {
	t.Helper()
	// Not t.TempDir: the name of a unix socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	root := filepath.Join(dir, "node")
	upstream.RunAgent(t, c, node, root)
	return root
}

// serve runs a driver until the test ends, and returns its socket.
func (l *comparedNode) serve(name string) string {
	l.t.Helper()
	d, err := plugin.Serve(plugin.Options{
		Name: name, NodeID: "id-" + l.node, Root: l.root, Dir: filepath.Join(filepath.Dir(l.root), name),
		Before: l.calls.note, MountGroup: name == grouping,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := d.Close(); err != nil {
			l.t.Error(err)
		}
	})
	return d.Socket
}

// createObjects creates the objects that both nodes need.
func createObjects(ctx context.Context, c *cluster.Cluster) error {
	core := c.Client.CoreV1()
	_, err := core.ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	for _, name := range []string{"staging", "publishing"} {
		_, also := core.Secrets("default").Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"key": "for " + name}},
			metav1.CreateOptions{})
		err = errors.Join(err, also)
	}
	for _, d := range describedDrivers() {
		_, also := c.Client.StorageV1().CSIDrivers().Create(ctx, d, metav1.CreateOptions{})
		err = errors.Join(err, also)
	}
	return err
}

// missingDrivers reports when drivers of the node are not registered yet.
func (l *comparedNode) missingDrivers(ctx context.Context) string {
	n, err := l.c.Client.StorageV1().CSINodes().Get(ctx, l.node, metav1.GetOptions{})
	if err != nil || len(n.Spec.Drivers) != 4 {
		return fmt.Sprintf("the drivers are not registered: %v %v", n, err)
	}
	return ""
}

// createPods creates the Pods and their volumes.
func (l *comparedNode) createPods(ctx context.Context, s side) error {
	for _, g := range guests() {
		if v := g.volumeOn(l.node); v != nil {
			if err := s.Wire(ctx, "default", v.Name, v); err != nil {
				return err
			}
		}
		if _, err := l.c.Client.CoreV1().Pods("default").Create(ctx, g.podOn(l.node), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (l *comparedNode) pods(ctx context.Context) ([]corev1.Pod, error) {
	all, err := l.c.Client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + l.node})
	return all.Items, err
}

// unmountedPods reports a Pod whose volumes are not mounted yet. A kubelet runs a Pod after that.
func (l *comparedNode) unmountedPods(ctx context.Context) string {
	pods, err := l.pods(ctx)
	if err != nil {
		return err.Error()
	}
	for _, p := range pods {
		mounted := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == volume.ConditionVolumesMounted && c.Status == corev1.ConditionTrue
		})
		if !mounted && p.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("pod %s waits: %+v", p.Name, p.Status)
		}
	}
	return ""
}

// placeholders returns a replacer for names that differ between the nodes.
func (l *comparedNode) placeholders(ctx context.Context) *strings.Replacer {
	l.t.Helper()
	pods, err := l.pods(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	names := []string{l.root, "ROOT"}
	for _, p := range pods {
		name := strings.TrimSuffix(p.Name, "-"+l.node)
		own := "csi-" + hash(string(p.UID)+"v")
		names = append(names, hash(own), "HASH-OF-"+name, own, "own-of-"+name, string(p.UID), "UID-OF-"+name)
	}
	for _, g := range guests() {
		id := "id-" + g.volumeName() + "-" + l.node
		names = append(names, hash(id), "HASH-OF-"+g.volumeName())
	}
	return strings.NewReplacer(append(names, "-"+l.node, "")...)
}

// deletePods deletes the node's Pods.
func (l *comparedNode) deletePods(ctx context.Context) error {
	pods, err := l.pods(ctx)
	for _, p := range pods {
		err = errors.Join(err, l.c.Client.CoreV1().Pods("default").Delete(ctx, p.Name, metav1.DeleteOptions{}))
	}
	return err
}

// left reports Pods and attachments of the node that still exist.
func (l *comparedNode) left(ctx context.Context) string {
	pods, err := l.pods(ctx)
	if err != nil || len(pods) > 0 {
		return fmt.Sprintf("%d pods are left, %v", len(pods), err)
	}
	all, err := l.c.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil || slices.ContainsFunc(all.Items, func(a storagev1.VolumeAttachment) bool {
		return a.Spec.NodeName == l.node
	}) {
		return fmt.Sprintf("attachments are left: %v %v", all.Items, err)
	}
	return ""
}
