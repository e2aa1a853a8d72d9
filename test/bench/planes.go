package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/test/internal/plane"
)

// planesNetwork is the beginning of the addresses of the control planes: they do not publish those that only their own
// host reaches.
const planesNetwork = "10.214.8."

// manyPlanes are three control planes over an etcd of three members, all on this host.
type manyPlanes struct {
	dir     string
	servers []string
	members map[string]*plane.Process
	planes  map[string]*plane.Plane
	clients map[string]kubernetes.Interface
	// joins are the flags of those that were invited.
	joins map[string][]string
	stops []func()
}

// measurePlanes measures three control planes over one etcd: the cost of a waiting one, the time for a claim, and what
// users notice when a control plane or a member ends.
func measurePlanes(ctx context.Context, figures map[string]any, n int) (err error) {
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		return err
	}
	m := &manyPlanes{
		dir: dir, members: map[string]*plane.Process{}, planes: map[string]*plane.Plane{},
		clients: map[string]kubernetes.Interface{}, joins: map[string][]string{},
	}
	defer func() {
		for _, stop := range slices.Backward(m.stops) {
			stop()
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := m.measureClaims(ctx, figures, n); err != nil {
		return err
	}
	if err := m.measureWaiting(ctx, figures); err != nil {
		return err
	}
	if err := m.measureEnds(ctx, figures, n); err != nil {
		return err
	}
	return m.measureMember(ctx, figures)
}

// measureClaims measures a claim on the host of a control plane with its own etcd and on that of one of three. The
// figures of both have the same names.
func (m *manyPlanes) measureClaims(ctx context.Context, figures map[string]any, n int) error {
	alone, err := plane.Start(ctx, filepath.Join(m.dir, "alone"))
	if err != nil {
		return err
	}
	defer alone.Stop()
	client, err := alone.Client()
	if err != nil {
		return err
	}
	if err := m.start(ctx, figures); err != nil {
		return err
	}
	medians := map[string]time.Duration{}
	hosts := []*diskHost{{node: "node1"}, {node: "n1"}}
	for i := range n + 1 {
		for _, h := range hosts {
			from := map[string]kubernetes.Interface{"node1": client, "n1": m.clients["n1"]}[h.node]
			if err := h.mountOne(ctx, from, fmt.Sprintf("%s-%d", h.node, i)); err != nil {
				return err
			}
		}
		slices.Reverse(hosts)
	}
	for _, h := range hosts {
		medians[h.node] = median(h.took[1:])
	}
	figures["planes_own_etcd_mounted_ms"] = milliseconds(medians["node1"])
	figures["planes_three_members_mounted_ms"] = milliseconds(medians["n1"])
	figures["planes_three_members_times_own"] = medians["n1"].Seconds() / medians["node1"].Seconds()
	return nil
}

// start starts the members and the control planes.
func (m *manyPlanes) start(ctx context.Context, figures map[string]any) error {
	var cluster []string
	addresses := map[string][2]string{}
	for _, name := range []string{"m1", "m2", "m3"} {
		client, peer := "http://"+plane.FreeAddress("127.0.0.1"), "http://"+plane.FreeAddress("127.0.0.1")
		addresses[name] = [2]string{client, peer}
		m.servers, cluster = append(m.servers, client), append(cluster, name+"="+peer)
	}
	for name, at := range addresses {
		p, err := plane.Run(filepath.Join(m.dir, name+".log"), "etcd", "--name="+name, "--data-dir="+
			filepath.Join(m.dir, name), "--listen-client-urls="+at[0], "--advertise-client-urls="+at[0],
			"--listen-peer-urls="+at[1], "--initial-advertise-peer-urls="+at[1], "--log-level=warn",
			"--initial-cluster="+strings.Join(cluster, ","))
		if err != nil {
			return err
		}
		m.members[name], m.stops = p, append(m.stops, p.Kill)
	}
	for i, name := range []string{"n1", "n2", "n3"} {
		begin := time.Now()
		if err := m.join(ctx, i, name); err != nil {
			return err
		}
		figures["planes_invite_to_ready_s"] = time.Since(begin).Seconds()
	}
	return nil
}

// join starts a control plane for the first time, with an address of its own.
func (m *manyPlanes) join(ctx context.Context, i int, name string) error {
	at := []string{planesNetwork + name[1:] + "/32", "dev", "lo"}
	if _, err := output(ctx, "ip", append([]string{"address", "replace"}, at...)...); err != nil {
		return err
	}
	m.stops = append(m.stops, func() { _ = exec.Command("ip", append([]string{"address", "del"}, at...)...).Run() })
	if i > 0 {
		file, err := m.planes["n1"].Invite(name, "--control-plane")
		if err != nil {
			return err
		}
		m.joins[name] = []string{"--join", file}
	}
	m.stops = append(m.stops, func() {
		if p := m.planes[name]; p != nil {
			p.Stop()
		}
	})
	return m.startPlane(ctx, name)
}

// startPlane starts a control plane, for the first time or again.
func (m *manyPlanes) startPlane(ctx context.Context, name string) error {
	p, err := plane.Start(ctx, filepath.Join(m.dir, name), append([]string{
		"--name", name, "--listen", planesNetwork + name[1:] + ":0", "--etcd-servers", strings.Join(m.servers, ","),
		"--etcd-prefix", "/volplane/bench",
	}, m.joins[name]...)...)
	if err != nil {
		return err
	}
	m.planes[name] = p
	m.clients[name], err = p.Client()
	return err
}

// leader returns the name of the control plane that leads.
func (m *manyPlanes) leader(ctx context.Context) (string, error) {
	return plane.Leader(ctx, m.clients["n1"], maps.Keys(m.planes))
}

// another returns a different control plane.
func another(name string) string { return map[string]string{"n1": "n2", "n2": "n3", "n3": "n1"}[name] }

// measureWaiting measures a control plane that does not lead, while nothing happens.
func (m *manyPlanes) measureWaiting(ctx context.Context, figures map[string]any) error {
	leader, err := m.leader(ctx)
	if err != nil {
		return err
	}
	pid := m.planes[another(leader)].PID()
	if err := pause(ctx, resting); err != nil {
		return err
	}
	before, err := readUsage(pid)
	if err != nil {
		return err
	}
	if err := pause(ctx, leasing); err != nil {
		return err
	}
	after, err := readUsage(pid)
	if err != nil {
		return err
	}
	figures["planes_waiting_rss_mib"] = float64(after.rssKiB) / 1024
	figures["planes_waiting_anonymous_mib"] = float64(after.anonymousKiB) / 1024
	figures["planes_waiting_cpu_percent_of_a_core"] = 100 * (after.cpu - before.cpu).Seconds() / leasing.Seconds()
	return nil
}

// measureEnds measures how long after the end of the leading control plane a claim of another host is mounted, and how
// many commands fail until then on the host whose control plane has ended.
func (m *manyPlanes) measureEnds(ctx context.Context, figures map[string]any, n int) error {
	var commands, failed atomic.Int64
	for how, end := range map[string]func(*plane.Plane){"sigterm": (*plane.Plane).Stop, "sigkill": (*plane.Plane).Kill} {
		var took []time.Duration
		for i := range n {
			leader, err := m.leader(ctx)
			if err != nil {
				return err
			}
			asking, answered := context.WithCancel(ctx)
			var both sync.WaitGroup
			both.Go(func() { end(m.planes[leader]) })
			both.Go(func() {
				for asking.Err() == nil {
					commands.Add(1)
					if _, err := output(ctx, plane.Bin("volplane"), "--data-dir", m.planes[leader].Dir, "get", "nodes"); err != nil {
						failed.Add(1)
					}
				}
			})
			h := &diskHost{node: another(leader)}
			err = h.mountOne(ctx, m.clients[h.node], fmt.Sprint(how, "-", i))
			answered()
			both.Wait()
			if err := errors.Join(err, m.startPlane(ctx, leader)); err != nil {
				return err
			}
			took = append(took, h.took...)
		}
		figures["planes_"+how+"_to_mounted_s"] = median(took).Seconds()
	}
	figures["planes_commands"], figures["planes_commands_failed"] = commands.Load(), failed.Load()
	return nil
}

// leadingMember returns the member of the etcd that leads.
func (m *manyPlanes) leadingMember(ctx context.Context) (*plane.Process, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: m.servers})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	for i, server := range m.servers {
		s, err := client.Status(ctx, server)
		if err != nil {
			return nil, err
		}
		if s.Leader == s.Header.MemberId {
			return m.members[fmt.Sprint("m", i+1)], nil
		}
	}
	return nil, errors.New("no member leads")
}

// measureMember measures the longest write while the leading member of the etcd is killed, and how many writes fail.
func (m *manyPlanes) measureMember(ctx context.Context, figures map[string]any) error {
	leading, err := m.leadingMember(ctx)
	if err != nil {
		return err
	}
	objects := m.clients["n1"].CoreV1().ConfigMaps("default")
	var longest time.Duration
	failed := 0
	const writes, killed = 1000, 200
	for i := range writes {
		if i == killed {
			leading.Kill()
		}
		begin := time.Now()
		_, err := objects.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("write-", i)}},
			metav1.CreateOptions{})
		if err != nil {
			failed++
		}
		longest = max(longest, time.Since(begin))
	}
	figures["planes_member_dies_longest_write_s"] = longest.Seconds()
	figures["planes_member_dies_writes_failed"] = failed
	return nil
}
