package orphans_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/decide/orphans"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const (
	driver = "d.example.com"
	uid    = "0b0c0d0e-1111-2222-3333-444455556666"
)

func object(name, handle string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle},
			},
		},
	}
	for _, c := range change {
		c(v)
	}
	return v
}

// awaited is a claim that asks the driver for a volume.
func awaited(name string, id types.UID, of string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: id, Annotations: map[string]string{volume.AnnStorageProvisioner: of},
	}}
}

// at has the objects and the volumes the same from the first look to the last.
func at(objects []*corev1.PersistentVolume, entries ...orphans.Entry) orphans.Facts {
	return orphans.Facts{
		Driver: driver, Before: objects, After: objects, First: entries, Second: entries,
		NodeIDs: map[string]bool{"n1": true},
	}
}

func entry(handle string) orphans.Entry { return orphans.Entry{Handle: handle, Bytes: 1 << 30} }

func with(f orphans.Facts, change func(*orphans.Facts)) orphans.Facts {
	change(&f)
	return f
}

type objects = []*corev1.PersistentVolume

func intent(of, name string) *provision.Intent { return &provision.Intent{Driver: of, Name: name} }

type findRow struct {
	argues string
	facts  orphans.Facts
}

func TestFind(t *testing.T) {
	var out strings.Builder
	for _, c := range slices.Concat(volumeRows(), makingRows(), objectRows()) {
		p := orphans.Find(c.facts)
		fmt.Fprintf(&out, "%s: making %d, elsewhere %d\n", c.argues, p.Creating, p.Elsewhere)
		for _, f := range p.Findings {
			text, err := json.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "\t%s\n", text)
		}
	}
	golden.Equal(t, "testdata/findings.txt", out.String())
}

// volumeRows are about volumes.
func volumeRows() []findRow {
	inTree := object("pv-old", "", func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
			AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://zone/vol-1"},
		}
	})
	slash := inTree.DeepCopy()
	slash.Spec.AWSElasticBlockStore.VolumeID = "aws://zone/"
	used, here := entry("h"), entry("h")
	used.Nodes, here.Nodes = []string{"n1", "n9"}, []string{"n1"}
	return []findRow{
		{"nothing anywhere", at(nil)},
		{"each has its other", at(objects{object("a", "h")}, entry("h"))},
		{"no object", at(nil, entry("h"))},
		{
			"an object of another driver is none of it",
			at(objects{object("a", "h", func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = "other" })}, entry("h")),
		},
		{"listed twice, found once", at(nil, entry("h"), entry("h"))},
		{"no handle is no volume", at(nil, entry(""))},
		{"of a claim that is there", with(at(nil, entry("cloud/pvc-"+uid)), func(f *orphans.Facts) {
			f.Claims = append(f.Claims, awaited("c", uid, "other"))
		})},
		{"used on a node of another cluster", at(nil, used)},
		{"used on a node of this cluster", at(nil, here)},
		{"part of a Pod", at(nil, entry("csi-"+strings.Repeat("0a", 32)))},
		{"of a plugin in the tree", at(objects{inTree}, entry("vol-1"))},
		{"of a plugin whose volume ends in a slash", at(objects{slash}, entry("vol/"))},
		{"several, in one order", at(objects{object("b", "gone"), object("a", "gone")}, entry("y"), entry("x"), entry("z"))},
		{"its object came meanwhile", with(at(nil, entry("h")), func(f *orphans.Facts) {
			f.After = objects{object("a", "h")}
		})},
		{"its object went meanwhile", with(at(objects{object("a", "h")}, entry("h")),
			func(f *orphans.Facts) { f.After = nil })},
		{"it went meanwhile", with(at(nil, entry("h")), func(f *orphans.Facts) { f.Second = nil })},
		{"it came meanwhile", with(at(nil, entry("h")), func(f *orphans.Facts) { f.First = nil })},
		{"a hostile handle", at(nil, entry("h\u202e\"x y"))},
	}
}

// TestInTree: a volume that an object of a plugin of Kubernetes' own names is not an
// orphan, whichever plugin that is.
func TestInTree(t *testing.T) {
	for name, source := range map[string]corev1.PersistentVolumeSource{
		"aws":      {AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://zone/h"}},
		"gce":      {GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "h"}},
		"azure":    {AzureDisk: &corev1.AzureDiskVolumeSource{DataDiskURI: "/subscriptions/x/disks/h"}},
		"cinder":   {Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "h"}},
		"vsphere":  {VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[store] kubevols/h"}},
		"portworx": {PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "h"}},
	} {
		v := object("a", "", func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeSource = source })
		if p := orphans.Find(at(objects{v}, entry("h"), entry("other"))); len(p.Findings) != 1 ||
			p.Findings[0].Handle != "other" {
			t.Errorf("%s: %+v", name, p.Findings)
		}
	}
}

// makingRows are about volumes that somebody makes or made.
func makingRows() []findRow {
	told, half, other := entry("h"), entry("h"), entry("h")
	told.Context = map[string]string{
		"csi.storage.k8s.io/pv/name": "a", "csi.storage.k8s.io/pvc/name": "c", "csi.storage.k8s.io/pvc/namespace": "ns",
		"storage.kubernetes.io/csiProvisionerIdentity": "p-1",
	}
	half.Context, other.Context = map[string]string{"csi.storage.k8s.io/pvc/name": "c"},
		map[string]string{"csi.storage.k8s.io/pvc/namespace": "ns"}
	bundled := func(f *orphans.Facts) { f.Driver = volume.LocalDriver }
	// The handle of the bundled driver for that name, as `volplane` gives it.
	ours := entry("vol-d7c2b4d5035b3c8701b74c04604dec8a")
	recorded := entry("vol-x")
	recorded.Name = "pvc-" + uid
	return []findRow{
		{"made by a claim, says its context", at(nil, told)},
		{"made by a claim that is gone, says its handle", at(nil, entry("cloud/pvc-"+uid))},
		{"being made, says its handle", with(at(nil, entry("pvc-"+uid)), func(f *orphans.Facts) {
			f.Intents = append(f.Intents, intent(driver, "pvc-"+uid))
		})},
		{"being made, says a claim", with(at(nil, entry("pvc-"+uid)), func(f *orphans.Facts) {
			f.Claims = append(f.Claims, awaited("c", uid, driver))
		})},
		{"something is being made, nobody knows what", with(at(nil, entry("h")), func(f *orphans.Facts) {
			f.Intents = append(f.Intents, intent(driver, "pvc-"+uid))
		})},
		{"something is being made, and is another one", with(at(nil, entry("h"), entry("pvc-"+uid)), func(f *orphans.Facts) {
			f.Intents = append(f.Intents, intent(driver, "pvc-"+uid))
		})},
		{"something is being made elsewhere", with(at(nil, entry("h")), func(f *orphans.Facts) {
			f.Intents = append(f.Intents, intent("other", "pvc-"+uid))
		})},
		{"a bound claim waits for nothing", with(at(nil, entry("h")), func(f *orphans.Facts) {
			c := awaited("c", uid, driver)
			c.Spec.VolumeName = "pv"
			f.Claims = append(f.Claims, c)
		})},
		{"what is being made may not be read", with(at(nil, entry("h")), func(f *orphans.Facts) { f.Hidden = true })},
		{"bundled: the record names it", with(at(nil, recorded), bundled)},
		{"bundled: its handle names it, where the claim is there", with(with(at(nil, ours), bundled), func(f *orphans.Facts) {
			f.Claims = append(f.Claims, awaited("c", uid, "other"))
		})},
		{"bundled: the one of the record is being made", with(with(at(nil, recorded), bundled), func(f *orphans.Facts) {
			f.Intents = append(f.Intents, intent(volume.LocalDriver, "pvc-"+uid))
		})},
		{"another driver may call its volumes like the bundled one", with(at(nil, ours), func(f *orphans.Facts) {
			f.Intents = append(f.Intents, intent(driver, "pvc-"+uid))
		})},
		{"half a claim is none", at(nil, half)},
		{"nor is the other half", at(nil, other)},
		{"bundled: another one is being made", with(with(at(nil, entry("vol-x")), bundled), func(f *orphans.Facts) {
			f.Intents = append(f.Intents, intent(volume.LocalDriver, "pvc-"+uid))
		})},
		{"bundled: this one is being made", with(with(at(nil, ours), bundled), func(f *orphans.Facts) {
			f.Intents = append(f.Intents, intent(volume.LocalDriver, "pvc-"+uid))
		})},
	}
}

// objectRows are about objects.
func objectRows() []findRow {
	zone := func(name string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = topology.Affinity([]topology.Segment{{"zone": name}})
		}
	}
	deleted := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy, v.Status.Phase = corev1.PersistentVolumeReclaimDelete, corev1.VolumeReleased
	}
	return []findRow{
		{"no volume", at(objects{object("a", "h", func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c"}
		})})},
		{"no volume, listed at first", with(at(objects{object("a", "h")}, entry("h")),
			func(f *orphans.Facts) { f.Second = nil })},
		{"no volume, listed at last", with(at(objects{object("a", "h")}, entry("h")),
			func(f *orphans.Facts) { f.First = nil })},
		{"no volume, new object", with(at(nil), func(f *orphans.Facts) { f.After = objects{object("a", "h")} })},
		{"no volume, deleted object", with(at(objects{object("a", "h")}), func(f *orphans.Facts) { f.After = nil })},
		{"no volume, being deleted", at(objects{object("a", "h", deleted)})},
		{"no volume, another zone", with(at(objects{object("a", "h", zone("z2"))}), func(f *orphans.Facts) {
			f.Own = topology.Segment{"zone": "z1"}
		})},
		{"no volume, the same zone", with(at(objects{object("a", "h", zone("z1"))}), func(f *orphans.Facts) {
			f.Own = topology.Segment{"zone": "z1"}
		})},
		{"no volume, a zone that is none of the driver's keys", with(at(objects{object("a", "h", zone("z2"))}),
			func(f *orphans.Facts) { f.Own = topology.Segment{"rack": "r1"} })},
		{"no volume, all zones but one", with(at(objects{object("a", "h", zone("z2"), func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Operator = corev1.NodeSelectorOpNotIn
		})}), func(f *orphans.Facts) { f.Own = topology.Segment{"zone": "z1"} })},
		{"no volume, an affinity of nothing", with(at(objects{
			object("a", "h", func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{} }),
		}), func(f *orphans.Facts) { f.Own = topology.Segment{"zone": "z1"} })},
		{"no volume, another driver's object", at(objects{
			object("a", "h", func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = "other" }),
		})},
		{"no volume, an object that was made anew meanwhile", with(at(objects{object("a", "h")}), func(f *orphans.Facts) {
			f.After = objects{object("a", "h", func(v *corev1.PersistentVolume) { v.UID = "anew" })}
		})},
		{"no volume, its object is going", at(objects{
			object("a", "h", func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &metav1.Time{} }),
		})},
		{"no volume, its deletion has failed", at(objects{
			object("a", "h", deleted, func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeFailed }),
		})},
		{"no volume, to be deleted one day", at(objects{
			object("a", "h", deleted, func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }),
		})},
		{"no volume, released and retained", at(objects{
			object("a", "h", func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased }),
		})},
		{"no volume, all zones", at(objects{object("a", "h", zone("z2"))})},
	}
}

// TestPrintable holds that nothing that a driver says moves the cursor or looks
// like another column.
func TestPrintable(t *testing.T) {
	for s, want := range map[string]string{
		"server/share-1": "server/share-1", "": `""`, "a b": `"a b"`, `a"b`: `"a\"b"`, "a\ufffdb": `"a\ufffdb"`,
	} {
		if got := orphans.Printable(s); got != want {
			t.Errorf("%q became %s, not %s", s, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "name")
		p := orphans.Printable(s)
		if p == "" || strings.ContainsFunc(p, func(r rune) bool {
			return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
		}) {
			t.Fatalf("%q is printed as %q", s, p)
		}
	})
}
