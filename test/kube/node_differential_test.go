package kube

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
	"volplane.dev/volplane/test/internal/plugin"
)

// TestNodeIsKubelet gives the same Pods to a node with a kubelet and to one with
// volplane's agent, in one cluster, and compares all calls of the drivers from
// the first one to the last.
func TestNodeIsKubelet(t *testing.T) {
	c := startCluster(t)
	c.controllers(t, "persistentvolume-attach-detach-controller")
	ours, theirs := c.lodge(t, "ours"), c.lodge(t, "theirs")
	ours.root = c.agent(t, "ours")
	theirs.root = c.kubelet(t, "theirs")
	var sockets []string
	for _, l := range []*lodge{ours, theirs} {
		for _, name := range []string{plain, informed, grouping, loose} {
			sockets = append(sockets, l.serve(name))
		}
	}
	s := side{name: "cluster", server: c, client: c.client}
	s.ours(t, dial(t, sockets[:3]...), "attacher")
	ctx, cancel := context.WithTimeout(t.Context(), mountLimit)
	defer cancel()
	if err := c.furnish(ctx); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*lodge{ours, theirs} {
		eventually(ctx, t, func() string { return l.open(ctx) })
		if err := l.receive(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []*lodge{ours, theirs} {
		eventually(ctx, t, func() string { return l.waiting(ctx) })
	}
	names := map[*lodge]*strings.Replacer{}
	for _, l := range []*lodge{ours, theirs} {
		names[l] = l.names(ctx)
		if err := l.empty(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []*lodge{ours, theirs} {
		eventually(ctx, t, func() string { return l.left(ctx) + below(t, l.root) })
	}
	compareCalls(t, nodeRows(), ours.calls.mustLines(t, names[ours]), theirs.calls.mustLines(t, names[theirs]))
}

// compareCalls complains of calls that only one of the sides makes for a reason
// that is not known, and of reasons for which nothing differs.
func compareCalls(t *testing.T, rows []row, ours, theirs []string) {
	t.Helper()
	used := map[string]bool{}
	d := difference{ours: ours, theirs: theirs, onlyOurs: without(ours, theirs), onlyTheirs: without(theirs, ours)}
	for who, lines := range map[string][]string{"volplane": d.onlyOurs, "the kubelet": d.onlyTheirs} {
		for _, l := range lines {
			i := slices.IndexFunc(rows, func(r row) bool { return r.explains(d, l) })
			if i < 0 {
				t.Errorf("only %s: %s", who, l)
				continue
			}
			used[rows[i].reason] = true
		}
	}
	for _, r := range rows {
		if !used[r.reason] {
			t.Errorf("nothing differs any more because %s", r.reason)
		}
	}
	t.Logf("%d calls, %d of them differ", len(ours), len(d.onlyOurs))
}

// lodge is a node with its drivers and Pods.
type lodge struct {
	t     *testing.T
	c     *cluster
	node  string
	root  string
	calls callLog
}

func (c *cluster) lodge(t *testing.T, node string) *lodge {
	return &lodge{t: t, c: c, node: node}
}

func (l *callLog) mustLines(t *testing.T, names *strings.Replacer) []string {
	t.Helper()
	out, err := l.lines(names)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// agent runs volplane's node agent until the test ends, and returns its
// directory.
func (c *cluster) agent(t *testing.T, node string) string {
	t.Helper()
	// Not t.TempDir: the name of a unix socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	root := filepath.Join(dir, "node")
	runAgent(t, c, node, root)
	return root
}

// serve serves a driver until the test ends, and returns its socket.
func (l *lodge) serve(name string) string {
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

// furnish makes what is not of one node.
func (c *cluster) furnish(ctx context.Context) error {
	core := c.client.CoreV1()
	_, err := core.ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	for _, name := range []string{"staging", "publishing"} {
		_, also := core.Secrets("default").Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"key": "for " + name}},
			metav1.CreateOptions{})
		err = errors.Join(err, also)
	}
	for _, d := range describedDrivers() {
		_, also := c.client.StorageV1().CSIDrivers().Create(ctx, d, metav1.CreateOptions{})
		err = errors.Join(err, also)
	}
	return err
}

// open says what is missing until Pods may come: the registration of drivers.
func (l *lodge) open(ctx context.Context) string {
	n, err := l.c.client.StorageV1().CSINodes().Get(ctx, l.node, metav1.GetOptions{})
	if err != nil || len(n.Spec.Drivers) != 4 {
		return fmt.Sprintf("the drivers are not registered: %v %v", n, err)
	}
	return ""
}

// receive makes the Pods and their volumes.
func (l *lodge) receive(ctx context.Context, s side) error {
	for _, g := range guests() {
		if v := g.volumeOn(l.node); v != nil {
			if err := s.wire(ctx, "default", v.Name, v); err != nil {
				return err
			}
		}
		if _, err := l.c.client.CoreV1().Pods("default").Create(ctx, g.podOn(l.node), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (l *lodge) pods(ctx context.Context) ([]corev1.Pod, error) {
	all, err := l.c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + l.node})
	return all.Items, err
}

// waiting says which Pods have no volumes yet: a kubelet lets them run then.
func (l *lodge) waiting(ctx context.Context) string {
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

// names returns what takes the node out of what is said of it.
func (l *lodge) names(ctx context.Context) *strings.Replacer {
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

// empty deletes the Pods.
func (l *lodge) empty(ctx context.Context) error {
	pods, err := l.pods(ctx)
	for _, p := range pods {
		err = errors.Join(err, l.c.client.CoreV1().Pods("default").Delete(ctx, p.Name, metav1.DeleteOptions{}))
	}
	return err
}

// left says what is left of the Pods.
func (l *lodge) left(ctx context.Context) string {
	pods, err := l.pods(ctx)
	if err != nil || len(pods) > 0 {
		return fmt.Sprintf("%d pods are left, %v", len(pods), err)
	}
	all, err := l.c.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil || slices.ContainsFunc(all.Items, func(a storagev1.VolumeAttachment) bool {
		return a.Spec.NodeName == l.node
	}) {
		return fmt.Sprintf("attachments are left: %v %v", all.Items, err)
	}
	return ""
}
