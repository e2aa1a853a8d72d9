package kube

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nothing translates nothing.
var nothing = Translation{
	Volume: func(*corev1.PersistentVolume) *corev1.CSIPersistentVolumeSource { return nil },
	Inline: func(*corev1.Volume) *corev1.CSIVolumeSource { return nil },
}

// TestSameObjects: caches with one Trimmer hold one object of each version of the kinds of which there are many, and
// never one that looks different to them.
func TestSameObjects(t *testing.T) {
	meta := func(version string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: version}
	}
	claim := func(version string) any { return &corev1.PersistentVolumeClaim{ObjectMeta: meta(version)} }
	pod := func() any { return &corev1.Pod{ObjectMeta: meta("1")} }
	volume := func(s corev1.PersistentVolumeSource) any {
		return &corev1.PersistentVolume{
			ObjectMeta: meta("1"), Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: s},
		}
	}
	csi := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d"}}
	flex := corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: "d"}}
	for name, c := range map[string]struct {
		first, second any
		// whole says that the second is for a cache of whole objects.
		whole, same bool
	}{
		"a claim":                {first: claim("1"), second: claim("1"), same: true},
		"a claim as a whole":     {first: claim("1"), second: claim("1"), whole: true, same: true},
		"another version":        {first: claim("1"), second: claim("2")},
		"of a fake":              {first: claim(""), second: claim("")},
		"a volume":               {first: volume(csi), second: volume(csi), whole: true, same: true},
		"a translated volume":    {first: volume(flex), second: volume(flex), whole: true},
		"a Pod":                  {first: pod(), second: pod(), same: true},
		"a Pod as a whole":       {first: pod(), second: pod(), whole: true},
		"kinds of which few are": {first: &corev1.Node{ObjectMeta: meta("1")}, second: &corev1.Node{ObjectMeta: meta("1")}},
		"an attachment": {
			first: &storagev1.VolumeAttachment{ObjectMeta: meta("1")}, same: true,
			second: &storagev1.VolumeAttachment{ObjectMeta: meta("1")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			trimmer := NewTrimmer(nothing)
			first, err := trimmer.trim(c.first)
			if err != nil {
				t.Fatal(err)
			}
			prepare := trimmer.trim
			if c.whole {
				prepare = trimmer.Whole
			}
			second, err := prepare(c.second)
			if err != nil || (first == second) != c.same {
				t.Errorf("the same: %v, %v, want %v", first == second, err, c.same)
			}
			if again, _ := prepare(second); again != second {
				t.Error("an object that is prepared again is another one")
			}
			runtime.KeepAlive(first)
		})
	}
}

// TestSameObjectsAreForgotten: objects that no cache has any more are not kept track of.
func TestSameObjectsAreForgotten(t *testing.T) {
	trimmer := NewTrimmer(nothing)
	for i := range 4 * fewObjects {
		if i%fewObjects == 0 {
			runtime.GC()
		}
		_, err := trimmer.trim(&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(trimmer.same.claims.objects); n > 2*fewObjects {
		t.Errorf("%d objects are kept track of, and none is in memory", n)
	}
}
