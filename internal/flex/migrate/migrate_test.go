package migrate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/migrate"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

func pair(name string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "volume-1"}}
	pv.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: "example.com/lofs"}
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name, UID: "claim-1"}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "claim-1"}}
	claim.Spec.VolumeName = name
	return pv, claim
}

// TestOtherVolumes: a volume that is not a FlexVolume is refused without further checks.
func TestOtherVolumes(t *testing.T) {
	pv, claim := pair("pv1")
	pv.Spec.FlexVolume, pv.Spec.CSI = nil, &corev1.CSIPersistentVolumeSource{Driver: "lofs.example.com", VolumeHandle: "h"}
	m := &Migration{Client: clientset.New(pv, claim)}
	for _, name := range []string{"pv1", "pv-absent"} {
		if p, err := m.Plan(t.Context(), name); err != nil || p.Step.Verb != migrate.Refuse {
			t.Errorf("plan of %s: %+v, %v", name, p.Step, err)
		}
		for _, back := range []bool{false, true} {
			if _, err := m.Run(t.Context(), name, back); !errors.Is(err, ErrRefused) {
				t.Errorf("run of %s: %v", name, err)
			}
		}
	}
}

// TestWrongJournal: if a journal was tampered with, no object is changed.
func TestWrongJournal(t *testing.T) {
	for what, change := range map[string]func(cm *corev1.ConfigMap){
		"of another volume": func(cm *corev1.ConfigMap) { cm.Name = journalName("pv2") },
		"with another name": func(cm *corev1.ConfigMap) { cm.Data[keyVolume] = "pv2" },
		"with another claim": func(cm *corev1.ConfigMap) {
			cm.Data[keyJournal] = strings.Replace(cm.Data[keyJournal], `"namespace":"ns"`, `"namespace":"other"`, 1)
		},
		"half of it": func(cm *corev1.ConfigMap) { cm.Data[keyJournal] = cm.Data[keyJournal][:100] },
		"empty":      func(cm *corev1.ConfigMap) { cm.Data = nil },
		"of nothing": func(cm *corev1.ConfigMap) { cm.Data[keyJournal] = `{}` },
	} {
		t.Run(what, func(t *testing.T) {
			actWith(t, change)
		})
	}
}

// actWith changes a journal and wants nothing to come of it.
func actWith(t *testing.T, change func(cm *corev1.ConfigMap)) {
	t.Helper()
	pv, claim := pair("pv1")
	client := clientset.New(claim)
	m := &Migration{Client: client}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(m.save(t.Context(), &migrate.Journal{Volume: pv, Claim: claim}, ""))
	maps := client.CoreV1().ConfigMaps(volume.NamespaceSystem)
	cm, err := maps.Get(t.Context(), journalName("pv1"), metav1.GetOptions{})
	must(err)
	cm = cm.DeepCopy()
	change(cm)
	must(maps.Delete(t.Context(), journalName("pv1"), metav1.DeleteOptions{}))
	_, err = maps.Create(t.Context(), cm, metav1.CreateOptions{})
	must(err)
	client.ClearActions()
	name := "pv1"
	if cm.Name != journalName(name) {
		name = "pv2"
	}
	for _, back := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		because, err := m.Run(ctx, name, back)
		cancel()
		if err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("run, back %t: %+v", back, because)
		}
	}
	for _, a := range client.Actions() {
		if v := a.GetVerb(); v != "get" && v != "list" && v != "watch" {
			t.Errorf("%s %s", v, a.GetResource().Resource)
		}
	}
}

// TestUnfinished finds what has no object now.
func TestUnfinished(t *testing.T) {
	m := &Migration{Client: clientset.New()}
	for name, j := range map[string]migrate.Journal{"pv-half": {}, "pv-done": {Done: true}, "pv-back": {Back: true}} {
		j.Volume, j.Claim = pair(name)
		if err := m.save(t.Context(), &j, ""); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := m.Unfinished(t.Context()); err != nil || len(names) != 1 || names[0] != "pv-half" {
		t.Errorf("%q, %v", names, err)
	}
}
