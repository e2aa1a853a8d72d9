package provision

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// copied is the volume of a claim, whose driver copies volumes.
func copied(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) Source {
	return Source{Clones: true, Claim: c, Volume: v}
}

// TestSources: a source that cannot be used is an error that names it, never an
// empty volume.
func TestSources(t *testing.T) {
	var out strings.Builder
	for _, c := range sources() {
		fmt.Fprintf(&out, "# %s\n%s", c.argues, planText(t,
			Claim(ClaimFacts{Claim: claim(c.claim), Class: class(nil), Driver: driver, Reachable: true, Source: c.source})))
	}
	golden.Equal(t, "testdata/sources.txt", out.String())
}

// sourceCase is a claim that wants the data of another object.
type sourceCase struct {
	argues string
	claim  func(*corev1.PersistentVolumeClaim)
	source Source
}

func sources() []sourceCase {
	from := func(group, kind string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: kind, Name: "source"}
		}
	}
	restores := from(volume.GroupSnapshot, volume.KindSnapshot)
	elsewhere := func(c *corev1.PersistentVolumeClaim) {
		other := "other"
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "source", Namespace: &other}
	}
	both := func(c *corev1.PersistentVolumeClaim) {
		elsewhere(c)
		from("", "PersistentVolumeClaim")(c)
	}
	source := claim(func(c *corev1.PersistentVolumeClaim) { c.UID, c.Status.Phase = "u9", corev1.ClaimBound })
	unbound := claim(func(c *corev1.PersistentVolumeClaim) { c.UID = "u9" })
	pv := func(by string, uid types.UID) *corev1.PersistentVolume {
		v := saved(uid)
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: by, VolumeHandle: "h9"}
		return v
	}
	block, mode := pv(driver, "u9"), corev1.PersistentVolumeBlock
	block.Spec.VolumeMode = &mode
	shot := func(change func(*Snapshot)) Source {
		s := Snapshot{
			Installed: true, Exists: true, Ready: true, Bound: true, Driver: driver, Handle: "s9", Bytes: 1 << 30,
			Mode: corev1.PersistentVolumeFilesystem,
		}
		change(&s)
		return Source{Restores: true, Snapshot: s}
	}
	return append([]sourceCase{
		{"a clone names its source", clones, copied(source, pv(driver, "u9"))},
		{"a driver that does not copy is named with what it lacks", clones, Source{Claim: source, Volume: pv(driver, "u9")}},
		{"the claim is not there", clones, Source{Clones: true}},
		{"the claim is not bound", clones, Source{Clones: true, Claim: unbound}},
		{"the claim names a volume of another claim (CVE-2019-11255)", clones, copied(source, pv(driver, "u7"))},
		{"the volume is another driver's", clones, copied(source, pv("x.example.com", "u9"))},
		{
			"the claim is being deleted", clones,
			copied(claim(func(c *corev1.PersistentVolumeClaim) { *c = *source.DeepCopy(); deleting(c) }), pv(driver, "u9")),
		},
		{"the claim is larger", clones, Source{Clones: true, Claim: claim(func(c *corev1.PersistentVolumeClaim) {
			*c = *source.DeepCopy()
			c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Ti")}
		}), Volume: pv(driver, "u9")}},
		{"the volume is a block device, the clone is not to be one", clones, copied(source, block)},
		{"a driver that does not restore is named with what it lacks", restores, Source{}},
		{"snapshots are not installed", restores, Source{Restores: true}},
		{"the snapshot is not there", restores, shot(func(s *Snapshot) { s.Exists = false })},
		{"the snapshot is going", restores, shot(func(s *Snapshot) { s.Deleting = true })},
		{"the snapshot is not ready", restores, shot(func(s *Snapshot) { s.Ready = false })},
		{"the snapshot names the content of another one", restores, shot(func(s *Snapshot) { s.Bound = false })},
		{"the snapshot is another driver's", restores, shot(func(s *Snapshot) { s.Driver = "x.example.com" })},
		{"the snapshot is not at the driver", restores, shot(func(s *Snapshot) { s.Handle = "" })},
		{"the data do not fit", restores, shot(func(s *Snapshot) { s.Bytes = 6 << 30 })},
		{"the data are of another volume mode", restores, shot(func(s *Snapshot) { s.Mode = corev1.PersistentVolumeBlock })},
		{"an administrator allows that", restores, shot(func(s *Snapshot) {
			s.Mode, s.MayChangeMode = corev1.PersistentVolumeBlock, true
		})},
		{"the snapshot is ready", restores, shot(func(*Snapshot) {})},
		{"what others fill", from("populators.example.com", "Web"), Source{}},
		{"and fill already", func(c *corev1.PersistentVolumeClaim) {
			from("populators.example.com", "Web")(c)
			c.Finalizers = []string{"web.example.com/populate-target-protection"}
		}, Source{}},
		{"a volume that no claim has is no source", clones, copied(source, &corev1.PersistentVolume{})},
		{"nor one of no CSI driver", clones, copied(source, saved("u9"))},
		{"data that just fit", restores, shot(func(s *Snapshot) { s.Bytes = 5 << 30 })},
		{"data of a mode that nobody knows", restores, shot(func(s *Snapshot) { s.Mode = "" })},
		{
			"data of a block device on one", func(c *corev1.PersistentVolumeClaim) { restores(c); c.Spec.VolumeMode = &mode },
			shot(func(s *Snapshot) { s.Mode = mode }),
		},
		{"a source in another namespace is not passed over", elsewhere, Source{}},
		{"nor is its namespace, where there is a claim of that name here", both, copied(source, pv(driver, "u9"))},
	}, granted(elsewhere, copied(source, pv(driver, "u9")))...)
}

// granted are claims that want the data of a claim in another namespace, while the gate is on but for one of them.
func granted(elsewhere func(*corev1.PersistentVolumeClaim), found Source) []sourceCase {
	others := func(s Source, granted bool) Source { s.OtherNamespaces, s.Granted = true, granted; return s }
	off := found
	off.Granted = true
	return []sourceCase{
		{"a source in another namespace without a grant", elsewhere, others(found, false)},
		{"with a grant", elsewhere, others(found, true)},
		{"with a grant, and there is none", elsewhere, others(Source{Clones: true}, true)},
		{"a grant is of no use if the gate is off", elsewhere, off},
		{"the claim's own namespace needs no grant", func(c *corev1.PersistentVolumeClaim) {
			elsewhere(c)
			*c.Spec.DataSourceRef.Namespace = c.Namespace
		}, others(found, false)},
		{"nor does none", func(c *corev1.PersistentVolumeClaim) {
			elsewhere(c)
			c.Spec.DataSourceRef.Namespace = nil
		}, others(found, false)},
	}
}

// TestReleased: what is copied stays until no copy of it is being made.
func TestReleased(t *testing.T) {
	held := func(c *corev1.PersistentVolumeClaim) {
		c.Finalizers = []string{volume.FinalizerClaimProtection, volume.FinalizerCloning}
	}
	copying := func(namespace, name string) []*Intent {
		return []*Intent{{Claim: corev1.ObjectReference{Namespace: namespace}, SourceName: name, Source: "h9"}}
	}
	restoring := copying("ns", "data")
	restoring[0].Source, restoring[0].Snapshot = "", "s9"
	for _, c := range []struct {
		argues string
		claim  *corev1.PersistentVolumeClaim
		open   []*Intent
		goes   bool
	}{
		{"nothing copies it", claim(held, deleting), nil, true},
		{"a copy is being made", claim(held, deleting), copying("ns", "data"), false},
		{"one of another claim", claim(held, deleting), copying("ns", "more"), true},
		{"one of a claim in another namespace", claim(held, deleting), copying("other", "data"), true},
		{"a restore of a snapshot of its name", claim(held, deleting), restoring, true},
		{"nobody deletes it", claim(held), nil, false},
		{"it is not held", claim(deleting), nil, false},
	} {
		before := c.claim.DeepCopy()
		got := Released(c.claim, c.open)
		if diff := cmp.Diff(before, c.claim); diff != "" {
			t.Errorf("%s: what is in the cache was changed:\n%s", c.argues, diff)
		}
		if (got != nil) != c.goes {
			t.Errorf("%s: released %v, want %v", c.argues, got != nil, c.goes)
		}
		if got != nil && !slices.Equal(got.Finalizers, []string{volume.FinalizerClaimProtection}) {
			t.Errorf("%s: finalizers left are %v", c.argues, got.Finalizers)
		}
	}
	bare := claim()
	if got := Protected(bare); got == nil || !slices.Contains(got.Finalizers, volume.FinalizerCloning) ||
		Protected(got) != nil || len(bare.Finalizers) > 0 {
		t.Errorf("protected is %v, of %v", got, bare)
	}
}
