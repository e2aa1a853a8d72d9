package capacity

import (
	"slices"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/capacity"
)

// TestTurns: one key at a time calls a driver, keys queued during the call follow in order and once each, and other
// drivers' keys do not wait.
func TestTurns(t *testing.T) {
	m := newMemory()
	for i, step := range []struct{ call, driver, key, want string }{
		{"begin", "d", "a", "yes"},
		{"begin", "d", "b", "no"},
		{"begin", "d", "c", "no"},
		{"begin", "d", "b", "no"},
		{"begin", "e", "a", "yes"},
		{"end", "d", "", "b"},
		{"begin", "d", "b", "yes"},
		{"end", "d", "", "c"},
		// Another key comes before the one that was named, which follows.
		{"begin", "d", "x", "yes"},
		{"begin", "d", "c", "no"},
		{"end", "d", "", "c"},
		{"begin", "d", "c", "yes"},
		{"end", "d", "", "nobody"},
		{"end", "e", "", "nobody"},
	} {
		got := "no"
		switch {
		case step.call == "end":
			got = "nobody"
			if next, ok := m.end(step.driver); ok {
				got = next.Name
			}
		case m.begin(itemKey(step.driver, step.key)):
			got = "yes"
		}
		if got != step.want {
			t.Fatalf("step %d, %+v: %s", i, step, got)
		}
	}
	if len(m.turns) > 0 {
		t.Errorf("left: %v", m.turns)
	}
}

// TestRemember: only new items need a call; a class that was created again under the same name is new.
func TestRemember(t *testing.T) {
	item := func(uid types.UID) capacity.Item {
		return capacity.Item{
			Class: &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: uid}, Provisioner: "d"},
		}
	}
	m := newMemory()
	for _, step := range []struct {
		items map[string]capacity.Item
		fresh []string
	}{
		{map[string]capacity.Item{"a": item("1"), "b": item("1")}, []string{"a", "b"}},
		{map[string]capacity.Item{"a": item("1"), "b": item("2")}, []string{"b"}},
		{map[string]capacity.Item{"a": item("1")}, nil},
		{map[string]capacity.Item{"a": item("1"), "b": item("2")}, []string{"b"}},
	} {
		fresh := m.remember("d", step.items)
		if slices.Sort(fresh); !slices.Equal(fresh, step.fresh) {
			t.Errorf("%v: new is %v, want %v", step.items, fresh, step.fresh)
		}
	}
	m.forget("d")
	if _, ok := m.item("d", "a"); ok || len(m.itemsOf("d")) > 0 {
		t.Error("not forgotten")
	}
}
