package page

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/testkit/golden"
)

// TestLife: the history that the objects of a volume's life and their events show, in order.
func TestLife(t *testing.T) {
	at := func(minute int) metav1.Time {
		return metav1.NewTime(time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC))
	}
	meta := func(ns, name string, minute int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("uid-" + name), CreationTimestamp: at(minute)}
	}
	c := &corev1.PersistentVolumeClaim{ObjectMeta: meta("ns", "data", 1)}
	c.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubectl", Time: ptr.To(at(2))}, {Manager: "binder", Subresource: "status", Time: ptr.To(at(4))}, {},
	}
	c.Spec.VolumeName, c.DeletionTimestamp, c.DeletionGracePeriodSeconds = "pv", ptr.To(at(30)), ptr.To[int64](60)
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
		{Type: "Resizing", Status: "True", LastTransitionTime: at(12)}, {Type: "Other", Status: "False"},
	}
	v := &corev1.PersistentVolume{ObjectMeta: meta("", "pv", 3)}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}
	v.Status.Phase, v.Status.LastPhaseTransitionTime = corev1.VolumeBound, ptr.To(at(4))
	a := &storagev1.VolumeAttachment{ObjectMeta: meta("", "a", 6)}
	a.Spec.Source.PersistentVolumeName = ptr.To("pv")
	a.Status.AttachError = &storagev1.VolumeError{Time: at(7), Message: "no path"}
	a.Status.DetachError = &storagev1.VolumeError{Time: at(20), Message: "busy"}
	p := &corev1.Pod{ObjectMeta: meta("ns", "web", 5)}
	p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	p.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}
	p.Status.Conditions = []corev1.PodCondition{
		{Type: "Mounted", Status: "False", Reason: "FailedMount", Message: "no disk", LastTransitionTime: at(8)},
	}
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "e"}}
	e.InvolvedObject = corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "data", UID: c.UID}
	old := e.DeepCopy()
	old.Name, old.InvolvedObject.UID = "old", "uid-of-an-earlier-claim"
	e.Type, e.Reason, e.Message, e.Count = corev1.EventTypeWarning, "Full", "no room", 4
	e.LastTimestamp, e.Source.Component = at(9), "provisioner"
	plane := planeOf(clientset.New(c, v, a, p, e, old))
	s, err := plane.see(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := glance{s, "./"}
	var b strings.Builder
	for _, o := range []object{{"pvc", "ns", "data"}, {"pv", "", "pv"}, {"pod", "ns", "web"}} {
		life, untold, _ := plane.life(t.Context(), g.related(o))
		fmt.Fprintf(&b, "%s %s\n", o.subject(), untold)
		for _, m := range life {
			fmt.Fprintf(&b, "  %s  %-22s %s  [%s, %v]\n", m.At, m.Subject, m.What, m.By, m.Warning)
		}
	}
	golden.Equal(t, "testdata/life.txt", b.String())
}

// TestTexts: foreign text is cut to one line, with invisible characters made visible; a name is quoted for the shell.
func TestTexts(t *testing.T) {
	for text, want := range map[string]string{
		"plain ä": "plain ä", "a\nb\tc": "a b c", "a\x1b[31m\u202eb": "a\ufffd[31m\ufffdb",
		strings.Repeat("x", longest+1): strings.Repeat("x", longest) + "…",
	} {
		if got := clean(text); got != want {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
	for o, want := range map[object]string{
		{"pvc", "ns", "data"}: "volplane why pvc/data -n ns", {"pv", "", "v"}: "volplane why pv/v",
		{"pv", "", "a;b 'c'"}: `volplane why 'pv/a;b '\''c'\'''`,
	} {
		if got := o.command("why"); got != want {
			t.Errorf("%v: %s", o, got)
		}
	}
	if got := (object{"pvc", "a/b", "?#%"}).path(); got != "object/pvc/a%2Fb/%3F%23%25" {
		t.Error(got)
	}
}

// TestLists: a list is divided into pages, whose links keep the parameters.
func TestLists(t *testing.T) {
	all := make([]int, 2*rows+1)
	for page, want := range map[int]string{
		0: "{201 1 100  x?find=f&page=2 f}", 1: "{201 101 200 x?find=f x?find=f&page=3 f}",
		2: "{201 201 201 x?find=f&page=2  f}", 9: "{201 201 201 x?find=f&page=2  f}",
	} {
		part, links := cut(all, "x", query{page: page, find: "f"})
		if got := fmt.Sprint(links); got != want || len(part) != links.Last-links.First+1 {
			t.Errorf("page %d: %s, %d lines", page, got, len(part))
		}
	}
	if part, links := cut([]int{}, "x", query{}); len(part) != 0 || links != (pages{}) {
		t.Errorf("of nothing: %v", links)
	}
	for _, address := range []string{
		"claims?page=-1", "claims?page=x", "claims?page=0", "claims?page=1", "claims?z=1",
		"claims?find=" + strings.Repeat("x", maxFind+1), "claims?node=" + strings.Repeat("x", 300),
	} {
		if got, err := targetOf(address); err != nil || got.address != "claims" {
			t.Errorf("%.40s: %q, %v", address, got.address, err)
		}
	}
}
