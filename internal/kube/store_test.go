package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/cluster"
)

// say is a Pod as "name version node claims...".
func say(text string) *corev1.Pod {
	f := strings.Fields(text)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: f[0], UID: types.UID(f[0]), ResourceVersion: f[1]},
	}
	if len(f) > 2 {
		p.Spec.NodeName = f[2]
		for _, c := range f[3:] {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
			}})
		}
	}
	return p
}

// anew is a Pod that was recreated under its name.
func anew(text string) *corev1.Pod {
	p := say(text)
	p.UID = "anew"
	return p
}

func versionOf(p *corev1.Pod) string {
	if p == nil {
		return "-"
	}
	return p.Name + p.ResourceVersion
}

func podStore() (*store[*corev1.Pod], reflectorStore[*corev1.Pod]) {
	s := newStore(nodePodIndexers(), new(Trimmer).trim)
	return s, reflectorStore[*corev1.Pod]{s}
}

// TestStoreTells: listeners are notified of changes, in order, with the last state of
// deleted objects, and of nothing that is unchanged.
func TestStoreTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, f := podStore()
		var heard []string
		l := newListener(func(before, after *corev1.Pod) {
			if after != nil {
				if now, ok := s.get(cluster.Key(after)); !ok || version(now) < version(after) {
					t.Errorf("%s is told and cannot be read", after.Name)
				}
			}
			heard = append(heard, versionOf(before)+">"+versionOf(after))
		})
		s.listeners = append(s.listeners, l)
		go l.run(ctx)
		for _, step := range []struct {
			do   func() error
			want string
		}{
			{func() error { return f.Replace([]any{say("a 1"), say("b 2")}, "2") }, "->a1 ->b2"},
			{func() error { return f.Add(say("c 3")) }, "->c3"},
			{func() error { return f.Update(say("a 4")) }, "a1>a4"},
			{func() error { return f.Update(say("a 4")) }, ""},
			{func() error { return f.Delete(say("b 5")) }, "b5>-"},
			{func() error { return f.Delete(say("b 5")) }, ""},
			{func() error { return f.Replace([]any{say("a 4"), say("d 6")}, "6") }, "->d6 c3>-"},
			{func() error { return f.Replace([]any{anew("a 7"), say("d 6")}, "7") }, "a4>- ->a7"},
		} {
			heard = nil
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := strings.Join(heard, " "); got != step.want {
				t.Errorf("heard %q, want %q", got, step.want)
			}
		}
	})
}

// TestStoreOwnWrites: an own write is seen until the watch has caught up, however
// long that takes, and is gone with its object. A list from before it changes nothing,
// one from a restarted history does.
func TestStoreOwnWrites(t *testing.T) {
	s, f := podStore()
	see := func(want string) {
		t.Helper()
		got, ok := s.get("n/a")
		if said := versionOf(got); said != want || ok != (got != nil) {
			t.Errorf("see %s, %v; want %s", said, ok, want)
		}
		if by := s.by(indexUID, "a"); len(by) == 1 != ok {
			t.Errorf("found %v, see %s", by, want)
		}
	}
	s.recordWrite(say("a 1"))
	see("a1")
	_ = f.Add(say("a 2"))
	see("a2")
	s.recordWrite(say("a 5"))
	s.recordWrite(say("a 4"))
	see("a5")
	_ = f.Update(say("a 3"))
	see("a5")
	_ = f.Update(say("a 6"))
	see("a6")
	s.recordWrite(say("a 7"))
	_ = f.Replace([]any{say("a 6")}, "6")
	see("a7")
	_ = f.Replace([]any{say("a 8")}, "8")
	see("a8")
	s.recordWrite(say("a 10"))
	_ = f.Replace([]any{say("a 8")}, "9")
	see("a10")
	_ = f.Replace([]any{say("a 5")}, "7")
	see("a5")
	s.recordWrite(say("a 11"))
	_ = f.Delete(say("a 12"))
	see("-")
	s.recordWrite(say("a 9"))
	see("-")
	_ = f.Add(say("a 13"))
	see("a13")
	if len(s.overlays) > 0 {
		t.Errorf("own writes are left: %v", s.overlays)
	}
}

// TestStoreFinds: after any changes each object is found under what it says
// now, and under nothing else.
func TestStoreFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, f := podStore()
		names, nodes := []string{"a", "b", "c", "d"}, []string{"n1", "n2"}
		for v := range rapid.IntRange(1, 30).Draw(t, "changes") {
			pod := say(fmt.Sprintf("%s %d %s %s", rapid.SampledFrom(names).Draw(t, "name"), v,
				rapid.SampledFrom(nodes).Draw(t, "node"),
				strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z"}), 0, 3).Draw(t, "claims"), " ")))
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				_ = f.Delete(pod)
			case 1:
				_ = f.Replace([]any{pod}, "")
			default:
				_ = f.Update(pod)
			}
			checkFound(t, s)
		}
	})
}

func checkFound[T Object](t *rapid.T, s *store[T]) {
	want := map[string][]string{}
	for _, p := range s.list() {
		for name, values := range s.indexers {
			for _, v := range values(p) {
				at := name + "=" + v
				if !slices.Contains(want[at], p.GetName()) {
					want[at] = append(want[at], p.GetName())
				}
			}
		}
	}
	found := 0
	for name, x := range s.indexes {
		for v := range x {
			found++
			var got []string
			for _, p := range s.by(name, v) {
				got = append(got, p.GetName())
			}
			slices.Sort(got)
			now := want[name+"="+v]
			slices.Sort(now)
			if !slices.Equal(got, now) {
				t.Fatalf("%s=%s finds %v, want %v", name, v, got, now)
			}
		}
	}
	if found != len(want) {
		t.Fatalf("%d values find something, want %d", found, len(want))
	}
}

// TestListenerWaits: a listener that waits does not hold up the store, nor
// other listeners, and is notified of everything later.
func TestListenerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, f := podStore()
		gate := make(chan struct{})
		slow, quick := 0, 0
		s.listeners = append(s.listeners, newListener(func(_, _ *corev1.Pod) { <-gate; slow++ }),
			newListener(func(_, _ *corev1.Pod) { quick++ }))
		for _, l := range s.listeners {
			go l.run(ctx)
		}
		for i := range 3000 {
			_ = f.Update(say(fmt.Sprint("a ", i+1)))
		}
		synctest.Wait()
		if slow != 0 || quick != 3000 {
			t.Errorf("heard %d and %d times, want 0 and 3000", slow, quick)
		}
		close(gate)
		synctest.Wait()
		if slow != 3000 {
			t.Errorf("heard %d times, want 3000", slow)
		}
	})
}
