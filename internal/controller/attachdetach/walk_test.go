package attachdetach_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/controller/attachdetach"
	"volplane.dev/volplane/internal/volume"
)

// walk are drawn lives of Pods with a volume for one node at a time, a, and one for
// many, b.
type walk struct {
	*world
	*rand.Rand
	// mounted holds the mounts of each node as "volume>node", and silent the nodes whose agents do nothing.
	mounted, silent map[string]bool
	// These are the facts after the last step: attached are the attachments, kept those that a Pod of a living node has
	// mounted, and believed the mounts of a living node that its Pods, or an attachment since the start, prove.
	attached, kept, believed map[string]bool
	// seen are the attachments since the start.
	seen  map[string]bool
	diary []string
}

// TestWalks: whatever Pods, nodes and the attacher do, and whenever the controller restarts: a living node that has a
// volume mounted keeps its attachment as long as its Pods exist, no other node gets a volume that only one node may
// use, and nothing is left at the end.
func TestWalks(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			o := slices.Concat(bound("a"), bound("b"), objects(node("n1"), node("n2")))
			o[2].(*corev1.PersistentVolume).Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
			inWorld(t, attachdetach.Options{}, func(w *world) {
				k := &walk{
					world: w, Rand: rand.New(rand.NewPCG(seed, 1)), mounted: map[string]bool{}, silent: map[string]bool{},
					seen: map[string]bool{},
				}
				for range 25 {
					k.step()
					k.holds()
				}
				k.ends()
				if w.Failed() {
					w.Logf("it went so:\n%s", strings.Join(k.diary, "\n"))
				}
			}, o...)
		})
	}
}

func (k *walk) step() {
	n, v := []string{"n1", "n2"}[k.IntN(2)], []string{"a", "b"}[k.IntN(2)]
	type step struct {
		name string
		do   func(n, v string)
	}
	attacher := step{"attacher", func(string, string) { k.attacher() }}
	restart := step{"restart", func(string, string) { clear(k.seen); k.Restart() }}
	time := step{"time", func(string, string) { k.pass(patience) }}
	comes, agent, revives := step{"comes", k.comes}, step{"agent", k.agent}, step{"revives", k.revives}
	steps := []step{comes, comes, {
		"goes", k.goes,
	}, {"is lost", k.lost}, {"dies", k.dies}, revives, revives, agent, agent, attacher, attacher, restart, time}
	s := steps[k.IntN(len(steps))]
	k.diary = append(k.diary, s.name+" "+n+" "+v)
	s.do(n, v)
	k.pass(soon)
}

// pod returns the Pod of a node that uses a volume, or nil.
func (k *walk) pod(n, v string) *corev1.Pod {
	p, err := k.pods().Get(k.Context(), v+"-"+n, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return p
}

func (k *walk) comes(n, v string) {
	if k.pod(n, v) == nil {
		k.Users.Put(pod(v+"-"+n, n, v))
	}
}

// goes deletes a Pod, whose node completes the deletion.
func (k *walk) goes(n, v string) {
	if k.pod(n, v) != nil {
		if err := k.pods().Delete(k.Context(), v+"-"+n, metav1.DeleteOptions{}); err != nil {
			k.Error(err)
		}
	}
}

// lost deletes a Pod without waiting for its node, which may have it mounted.
func (k *walk) lost(n, v string) {
	if k.pod(n, v) != nil {
		gone(k.world, k.pods(), v+"-"+n)
	}
}

func (k *walk) dies(n, _ string)    { k.silent[n] = true; change(k.world, k.Nodes(), n, down) }
func (k *walk) revives(n, _ string) { k.silent[n] = false; change(k.world, k.Nodes(), n, up) }

// agent does everything that a node agent can do: it reports a volume in use before it checks whether the volume is
// attached, and no longer in use after it has unmounted it.
func (k *walk) agent(n, _ string) {
	if k.silent[n] {
		return
	}
	var use []string
	for _, v := range []string{"a", "b"} {
		p := k.pod(n, v)
		if wants := p != nil && p.DeletionTimestamp == nil; wants {
			use = append(use, v)
			continue
		}
		delete(k.mounted, v+">"+n)
	}
	k.uses(n, use...)
	told, err := k.Nodes().Get(k.Context(), n, metav1.GetOptions{})
	if err != nil {
		k.Fatal(err)
	}
	for _, v := range use {
		if slices.ContainsFunc(told.Status.VolumesAttached,
			func(a corev1.AttachedVolume) bool { return a.Name == unique(v) }) {
			k.mounted[v+">"+n] = true
			change(k.world, k.pods(), v+"-"+n, func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue}}
			})
		}
	}
	for _, v := range []string{"a", "b"} {
		if p := k.pod(n, v); p != nil && p.DeletionTimestamp != nil {
			gone(k.world, k.pods(), p.Name)
		}
	}
}

// holds checks the invariants after each step.
func (k *walk) holds() {
	k.Helper()
	now := map[string]bool{}
	for _, a := range k.all() {
		at := place(&a)
		now[at], k.seen[at] = a.DeletionTimestamp == nil, true
	}
	kept, believed := map[string]bool{}, map[string]bool{}
	for at := range k.mounted {
		v, n, _ := strings.Cut(at, ">")
		if k.silent[n] {
			continue
		}
		p := k.pod(n, v)
		if k.kept[at] && p != nil && !now[at] {
			k.Errorf("%s is mounted, and a Pod is there, and its attachment is not; attachments: %v", at, now)
		}
		if to := "a>" + other(n); v == "a" && k.believed[at] && now[to] && !k.attached[to] {
			k.Errorf("%s is mounted, and the other node gets it; attachments: %v", at, now)
		}
		kept[at], believed[at] = now[at] && p != nil, k.proved(at, p)
	}
	k.attached, k.kept, k.believed = now, kept, believed
}

// proved says whether the mounts that a living node reports count.
func (k *walk) proved(at string, p *corev1.Pod) bool {
	if p == nil {
		return k.seen[at]
	}
	return p.DeletionTimestamp != nil || len(p.Status.Conditions) > 0
}

func other(n string) string { return map[string]string{"n1": "n2", "n2": "n1"}[n] }

// ends deletes all Pods, and lets both nodes and the attacher do their work.
func (k *walk) ends() {
	k.Helper()
	for _, n := range []string{"n1", "n2"} {
		k.revives(n, "")
		k.goes(n, "a")
		k.goes(n, "b")
	}
	for range 3 {
		k.agent("n1", "")
		k.agent("n2", "")
		k.attacher()
	}
	k.are()
	k.knows("n1")
	k.knows("n2")
	if len(k.mounted) > 0 {
		k.Errorf("mounted is %v", slices.Collect(maps.Keys(k.mounted)))
	}
}
