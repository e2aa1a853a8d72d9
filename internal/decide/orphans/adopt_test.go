package orphans_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/decide/orphans"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func wanting(f orphans.Facts, change ...func(*orphans.AdoptionFacts)) orphans.AdoptionFacts {
	a := orphans.AdoptionFacts{Facts: f, Request: orphans.Request{Driver: f.Driver, Handle: "h"}}
	for _, c := range change {
		c(&a)
	}
	return a
}

func claimed(a *orphans.AdoptionFacts) {
	a.Request.Claim = types.NamespacedName{Namespace: "ns", Name: "c"}
}

type adoptRow struct {
	argues string
	facts  orphans.AdoptionFacts
}

func TestAdopt(t *testing.T) {
	var out strings.Builder
	for _, c := range slices.Concat(adoptRows(), againRows(), bundledRows()) {
		a, because := orphans.Adopt(c.facts)
		fmt.Fprintf(&out, "%s: %s: %s -> %s\n%s", c.argues, because.Reason, because.Message, because.Next, described(t, a))
	}
	golden.Equal(t, "testdata/adoptions.txt", out.String())
}

func described(t *testing.T, a orphans.Adoption) string {
	var out strings.Builder
	line := func(what string, o any) {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "\t%s %s\n", what, text)
	}
	if a.Create != nil {
		line("create", a.Create)
	}
	if a.Link != nil {
		line("link", a.Link)
	}
	if a.Claim != nil {
		line("claim", a.Claim)
	}
	if a.Object != nil && a.Create == nil && a.Link == nil {
		fmt.Fprintf(&out, "\tleave pv/%s\n", a.Object.Name)
	}
	return out.String()
}

func asking(change func(*orphans.Request)) func(*orphans.AdoptionFacts) {
	return func(a *orphans.AdoptionFacts) { change(&a.Request) }
}

func contents(c orphans.Contents) func(*orphans.AdoptionFacts) {
	return func(a *orphans.AdoptionFacts) { a.Contents, a.Default = c, true }
}

func local(f orphans.Facts) orphans.Facts {
	f.Driver = volume.LocalDriver
	return f
}

// adoptRows are about volumes without an object.
func adoptRows() []adoptRow {
	full := entry("h")
	full.Context, full.Segments = map[string]string{"share": "s", "server": "old"},
		[]topology.Segment{{"zone": "z1"}, {"zone": "z2"}}
	nameless := entry("h")
	nameless.Bytes = 0
	used := entry("h")
	used.Nodes = []string{"n9"}
	elsewhere := entry("a")
	elsewhere.Nodes = used.Nodes
	hostile := entry("h")
	hostile.Context = map[string]string{"csi.storage.k8s.io/pv/name": "../b"}
	named := entry("h")
	named.Context = map[string]string{"csi.storage.k8s.io/pv/name": "a"}
	const block = corev1.PersistentVolumeBlock
	return []adoptRow{
		{"not there", wanting(at(nil, entry("other")))},
		{"as it is", wanting(at(nil, full))},
		{"with a claim", wanting(at(nil, full), claimed)},
		{"with all flags", wanting(at(nil, full), claimed, asking(func(w *orphans.Request) {
			class := "fast"
			w.Name, w.Modes, w.FSType, w.Class = "mine",
				[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadOnlyMany}, "xfs", &class
			w.Attributes = map[string]string{"server": "new"}
		}))},
		{"attributes of nothing", wanting(at(nil, entry("h")),
			asking(func(w *orphans.Request) { w.Attributes = map[string]string{"a": "b"} }))},
		{"a raw one", wanting(at(nil, entry("h")), asking(func(w *orphans.Request) { w.Mode = block }))},
		{"a raw one with a filesystem", wanting(at(nil, entry("h")),
			asking(func(w *orphans.Request) { w.Mode, w.FSType = block, "ext4" }))},
		{"no size", wanting(at(nil, nameless))},
		{"a given size", wanting(at(nil, nameless), asking(func(w *orphans.Request) { w.Bytes = 5 }))},
		{"the size that the driver says", wanting(at(nil, entry("h")),
			asking(func(w *orphans.Request) { w.Bytes = 1 << 30 }))},
		{"raw data of another driver are its own matter, and so is the default class", wanting(at(nil, entry("h")),
			contents(orphans.Contents{Known: true}))},
		{"another size", wanting(at(nil, entry("h")), asking(func(w *orphans.Request) { w.Bytes = 5 }))},
		{"the name it was made as", wanting(at(nil, named))},
		{"a name that is taken", wanting(at(objects{object("a", "x")}, named))},
		{"a wanted name that is taken", wanting(at(objects{object("a", "x")}, entry("h")),
			asking(func(w *orphans.Request) { w.Name = "a" }))},
		{"a hostile name", wanting(at(nil, hostile))},
		{"another cluster's", wanting(at(nil, used))},
		{"what another volume is does not matter", wanting(at(nil, elsewhere, entry("h")))},
		{"another cluster's, by force", wanting(at(nil, used), asking(func(w *orphans.Request) { w.Force = true }))},
		{"being made", wanting(with(at(nil, named), func(f *orphans.Facts) {
			f.Intents = append(f.Intents, intent(driver, "a"))
		}))},
		{"being made, by force", wanting(with(at(nil, named), func(f *orphans.Facts) {
			f.Intents = append(f.Intents, intent(driver, "a"))
		}), asking(func(w *orphans.Request) { w.Force = true }))},
		{"being deleted", wanting(with(at(nil, named), func(f *orphans.Facts) { f.Second = nil }))},
	}
}

// againRows are about volumes that have one, and claims that are there.
func againRows() []adoptRow {
	named := entry("h")
	named.Context = map[string]string{"csi.storage.k8s.io/pv/name": "a"}
	ref := func(uid types.UID) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: uid}
		}
	}
	claim := func(of string) func(*orphans.AdoptionFacts) {
		return func(a *orphans.AdoptionFacts) {
			a.Claim = &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"},
				Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: of},
			}
		}
	}
	return []adoptRow{
		{"adopted before", wanting(at(objects{object("a", "h")}, entry("h")))},
		{"adopted before, now with a claim", wanting(at(objects{object("a", "h")}, entry("h")), claimed)},
		{"killed before the claim", wanting(at(objects{object("a", "h", ref(""))}, entry("h")), claimed)},
		{"all done", wanting(at(objects{object("a", "h", ref("u"))}, entry("h")), claimed, claim("a"))},
		{"released", wanting(at(objects{object("a", "h", ref("gone"))}, entry("h")), claimed)},
		{"another claim's", wanting(at(objects{object("a", "h", ref("u"))}, entry("h")), claimed,
			asking(func(w *orphans.Request) { w.Claim.Name = "d" }))},
		{"another namespace's", wanting(at(objects{object("a", "h", ref(""))}, entry("h")), claimed,
			asking(func(w *orphans.Request) { w.Claim.Namespace = "other" }))},
		{"another claim's, by name alone", wanting(at(objects{object("a", "h", ref(""))}, entry("h")), claimed,
			asking(func(w *orphans.Request) { w.Claim.Name = "d" }))},
		{"released, and its claim was made anew", wanting(at(objects{object("a", "h", ref("gone"))}, entry("h")),
			claimed, claim("a"))},
		{
			"another driver has one of that handle",
			wanting(at(objects{object("a", "h", func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = "other" })}, entry("h"))),
		},
		{
			"a volume of no driver is another one",
			wanting(at(objects{object("a", "", func(v *corev1.PersistentVolume) { v.Spec.CSI = nil })}, entry("h"))),
		},
		{"its claim is going", wanting(at(objects{object("a", "h", ref("u"))}, entry("h")), claimed, claim("a"),
			func(a *orphans.AdoptionFacts) { a.Claim.DeletionTimestamp = &metav1.Time{} })},
		{"its object is going", wanting(at(objects{
			object("a", "h", func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &metav1.Time{} }),
		}, entry("h")), claimed)},
		{"the claim is there", wanting(at(nil, named), claimed, claim(""))},
		{"the claim is another volume's", wanting(at(nil, named), claimed, claim("b"))},
		{"the claim has lost its volume", wanting(at(nil, named), claimed, claim("a"))},
	}
}

// bundledRows are about the bundled driver's.
func bundledRows() []adoptRow {
	full := entry("h")
	full.Segments = []topology.Segment{{"zone": "z1"}}
	return []adoptRow{
		{"bundled, ext4", wanting(local(at(nil, full)), contents(orphans.Contents{Known: true, Holds: "ext4"}), claimed)},
		{"bundled, xfs", wanting(local(at(nil, entry("h"))), contents(orphans.Contents{Known: true, Holds: "xfs"}))},
		{"bundled, no class wanted", wanting(local(at(nil, entry("h"))),
			contents(orphans.Contents{Known: true, Holds: "xfs"}), asking(func(w *orphans.Request) { w.Class = new(string) }))},
		{"bundled, blank", wanting(local(at(nil, entry("h"))), contents(orphans.Contents{Known: true, Blank: true}))},
		{"bundled, raw", wanting(local(at(nil, entry("h"))), contents(orphans.Contents{Known: true}))},
		{"bundled, raw is no filesystem", wanting(local(at(nil, entry("h"))), contents(orphans.Contents{Known: true}),
			asking(func(w *orphans.Request) { w.Mode = corev1.PersistentVolumeFilesystem }))},
		{"bundled, raw is no ext4", wanting(local(at(nil, entry("h"))), contents(orphans.Contents{Known: true}),
			asking(func(w *orphans.Request) { w.FSType = "ext4" }))},
		{"bundled, nobody can look", wanting(local(at(nil, entry("h"))))},
		{"bundled, nobody can look, and it is said", wanting(local(at(nil, entry("h"))),
			asking(func(w *orphans.Request) { w.FSType = "xfs" }))},
		{"bundled, ext4 is not xfs", wanting(local(at(nil, full)), contents(orphans.Contents{Known: true, Holds: "ext4"}),
			asking(func(w *orphans.Request) { w.FSType = "xfs" }))},
		{"bundled, ext4 is ext4", wanting(local(at(nil, full)), contents(orphans.Contents{Known: true, Holds: "ext4"}),
			asking(func(w *orphans.Request) { w.FSType = "ext4" }))},
		{"bundled, nobody can look, and it is said to be raw", wanting(local(at(nil, entry("h"))),
			asking(func(w *orphans.Request) { w.Mode = corev1.PersistentVolumeBlock }))},
		{"bundled, read on many nodes", wanting(local(at(nil, entry("h"))),
			contents(orphans.Contents{Known: true, Blank: true}),
			asking(func(w *orphans.Request) { w.Modes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany} }))},
		{"bundled, on many nodes", wanting(local(at(nil, entry("h"))), contents(orphans.Contents{Known: true, Blank: true}),
			asking(func(w *orphans.Request) { w.Modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany} }))},
	}
}

// TestAdoptionSettles draws objects and lists: what is adopted is an orphan no
// more, its object is retained and of that volume, the second time nothing is
// left to do, and what is being made or has an object is never taken.
func TestAdoptionSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, owned := drawn(t)
		for _, p := range orphans.Find(f).Findings {
			if p.Kind == orphans.Volume && owned[p.Handle] {
				t.Fatalf("%q has an object", p.Handle)
			}
			if p.Kind == orphans.Volume {
				settles(t, f, p.Handle)
			}
		}
	})
}

// drawn returns volumes and objects, and which handles have one.
func drawn(t *rapid.T) (orphans.Facts, map[string]bool) {
	handles := rapid.SliceOf(rapid.SampledFrom([]string{
		"a", "b", "x/a", "pvc-" + uid, "h\n\u202e", "csi-" + strings.Repeat("00", 32),
	}))
	f, owned := at(nil), map[string]bool{}
	for i, h := range handles.Draw(t, "listed") {
		e := entry(h)
		e.Context = map[string]string{
			"csi.storage.k8s.io/pv/name": rapid.SampledFrom([]string{"", "pv-0", "n-1", "/"}).Draw(t, "name"),
		}
		if i%2 == 1 {
			e.Nodes = []string{"n1"}
		}
		f.First = append(f.First, e)
	}
	for i, h := range handles.Draw(t, "objects") {
		f.After, owned[h] = append(f.After, object(fmt.Sprint("pv-", i), h)), true
	}
	f.Second, f.Before = f.First, f.After
	return f, owned
}

func settles(t *rapid.T, f orphans.Facts, handle string) {
	a := orphans.AdoptionFacts{Facts: f, Request: orphans.Request{Driver: driver, Handle: handle, Force: true}}
	claimed(&a)
	first, because := orphans.Adopt(a)
	if first.Create == nil || first.Claim == nil {
		t.Fatalf("%q is not taken in: %v", handle, because)
	}
	v := first.Create
	if v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || v.Spec.CSI.VolumeHandle != handle ||
		first.Claim.Spec.VolumeName != v.Name {
		t.Fatalf("%q is taken in as %v", handle, v)
	}
	a.After = append(slices.Clone(a.After), v)
	if slices.ContainsFunc(orphans.Find(a.Facts).Findings,
		func(p orphans.Finding) bool { return p.Kind == orphans.Volume && p.Handle == handle }) {
		t.Fatalf("%q is an orphan still", handle)
	}
	a.Claim = first.Claim
	if second, because := orphans.Adopt(a); second.Create != nil || second.Link != nil || second.Claim != nil ||
		second.Object == nil {
		t.Fatalf("%q is not done: %v", handle, because)
	}
}
