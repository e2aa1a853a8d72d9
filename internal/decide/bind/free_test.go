package bind

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

var someModes = [][]corev1.PersistentVolumeAccessMode{
	{corev1.ReadWriteOnce},
	{corev1.ReadWriteMany, corev1.ReadWriteOnce},
	{corev1.ReadWriteOnce, corev1.ReadWriteMany},
	{corev1.ReadOnlyMany},
}

func someVolume(t *rapid.T, name string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"disk": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "label")},
	}}
	v.Spec.Capacity = corev1.ResourceList{
		corev1.ResourceStorage: *resource.NewQuantity(rapid.Int64Range(1, 4).Draw(t, "size"), resource.BinarySI),
	}
	v.Spec.StorageClassName = rapid.SampledFrom([]string{"", "fast"}).Draw(t, "class")
	v.Spec.AccessModes = rapid.SampledFrom(someModes).Draw(t, "modes")
	v.Spec.VolumeMode = rapid.SampledFrom([]*corev1.PersistentVolumeMode{nil, ptr.To(corev1.PersistentVolumeBlock)}).
		Draw(t, "mode")
	v.Spec.VolumeAttributesClassName = rapid.SampledFrom([]*string{nil, ptr.To(""), ptr.To("gold")}).Draw(t, "attributes")
	v.Status.Phase = rapid.SampledFrom([]corev1.PersistentVolumePhase{
		corev1.VolumeAvailable, corev1.VolumeAvailable, corev1.VolumeReleased,
	}).Draw(t, "phase")
	if rapid.IntRange(0, 5).Draw(t, "going") == 0 {
		v.DeletionTimestamp = &metav1.Time{}
	}
	return v
}

func someClaim(t *rapid.T) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	c.Spec.Resources.Requests = corev1.ResourceList{
		corev1.ResourceStorage: *resource.NewQuantity(rapid.Int64Range(1, 4).Draw(t, "request"), resource.BinarySI),
	}
	c.Spec.StorageClassName = ptr.To(rapid.SampledFrom([]string{"", "fast"}).Draw(t, "class"))
	c.Spec.AccessModes = rapid.SampledFrom(someModes).Draw(t, "modes")
	c.Spec.VolumeMode = rapid.SampledFrom([]*corev1.PersistentVolumeMode{nil, ptr.To(corev1.PersistentVolumeBlock)}).
		Draw(t, "mode")
	c.Spec.VolumeAttributesClassName = rapid.SampledFrom([]*string{nil, ptr.To("gold")}).Draw(t, "attributes")
	if rapid.Bool().Draw(t, "selects") {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "b"}}
	}
	return c
}

// TestFreeIsMatch: what is found by order is what a look at all would choose,
// whatever came, changed and went before.
func TestFreeIsMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		free, all := NewFree(), map[string]*corev1.PersistentVolume{}
		for range rapid.IntRange(0, 30).Draw(t, "changes") {
			name := fmt.Sprint("v", rapid.IntRange(0, 11).Draw(t, "name"))
			if rapid.IntRange(0, 4).Draw(t, "gone") == 0 {
				free.Remove(name)
				delete(all, name)
				continue
			}
			all[name] = someVolume(t, name)
			free.Set(all[name])
		}
		var list []*corev1.PersistentVolume
		for _, v := range all {
			list = append(list, v)
		}
		claim := someClaim(t)
		if got, want := free.Best(claim, nil), Match(claim, list, false); got != want {
			t.Fatalf("best is %v, not %v", nameOf(got), nameOf(want))
		}
		near := func(v *corev1.PersistentVolume) bool { return v.Name > "v5" }
		list = slices.DeleteFunc(list, func(v *corev1.PersistentVolume) bool { return !near(v) })
		if got, want := free.Best(claim, near), Match(claim, list, false); got != want {
			t.Fatalf("best of those that will do is %v, not %v", nameOf(got), nameOf(want))
		}
		for name := range all {
			free.Remove(name)
		}
		if len(free.groups)+len(free.members) > 0 {
			t.Fatal("not empty in the end")
		}
	})
}

// TestFree: only what nobody has and nobody deletes is free, and of a group the
// smallest that is large enough is best, whichever groups there are beside it.
func TestFree(t *testing.T) {
	taken, going, released := pv("taken", "5Gi", refers("ns", "other", "")), pv("going", "5Gi"), pv("released", "5Gi")
	going.DeletionTimestamp, released.Status.Phase = &metav1.Time{}, corev1.VolumeReleased
	small, fits, large, twin := pv("small", "1Gi"), pv("fits", "6Gi"), pv("large", "9Gi"), pv("also", "6Gi")
	wide, read := pv("wide", "5Gi", wide), pv("read", "1Gi", wide)
	for _, c := range []struct {
		argues string
		all    []*corev1.PersistentVolume
		want   string
	}{
		{"none is free", []*corev1.PersistentVolume{taken, going, released}, "none"},
		{"none is large enough", []*corev1.PersistentVolume{small, read}, "none"},
		{"the smallest", []*corev1.PersistentVolume{small, large, fits, taken, going, released}, "fits"},
		{"the first by name", []*corev1.PersistentVolume{small, large, fits, twin}, "also"},
		{"a group of small ones has none", []*corev1.PersistentVolume{small, wide}, "wide"},
		{"whichever it is", []*corev1.PersistentVolume{read, large}, "large"},
		{"few access modes before little size", []*corev1.PersistentVolume{wide, large}, "large"},
	} {
		// Shelves have no order: each is looked at first once in a while.
		for range 20 {
			free := NewFree()
			for _, v := range c.all {
				free.Set(v)
			}
			if got := nameOf(free.Best(claim(), nil)); got != c.want {
				t.Fatalf("%s: %s, want %s", c.argues, got, c.want)
			}
		}
	}
}

func nameOf(v *corev1.PersistentVolume) string {
	if v == nil {
		return "none"
	}
	return v.Name
}

// BenchmarkBest is one decision among many volumes.
func BenchmarkBest(b *testing.B) {
	free := NewFree()
	for i := range 50000 {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("v", i)}}
		v.Spec.Capacity = corev1.ResourceList{
			corev1.ResourceStorage: *resource.NewQuantity(int64(i%1000)<<20, resource.BinarySI),
		}
		v.Spec.AccessModes, v.Status.Phase = someModes[i%len(someModes)], corev1.VolumeAvailable
		free.Set(v)
	}
	claim := &corev1.PersistentVolumeClaim{}
	claim.Spec.AccessModes = someModes[0]
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("500Mi")}
	b.ReportAllocs()
	for b.Loop() {
		if free.Best(claim, nil) == nil {
			b.Fatal("none")
		}
	}
}
