package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// TestIntentsInLeases: a log in Leases outlives its writer, is found when intents are listed, and leaves nothing when
// all is done.
func TestIntentsInLeases(t *testing.T) {
	client := clientset.New()
	place := LogPlace{Namespace: logSpace, Name: logName, InLeases: true}
	l := NewIntentLog(client, place)
	if _, err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustPut(t, l, "a", "b")
	l.Done("a")
	mustPut(t, l, "c")
	if maps, err := client.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(maps.Items) > 0 {
		t.Errorf("%d ConfigMaps, %v", len(maps.Items), err)
	}
	all, err := ListIntents(t.Context(), client, "")
	var listed []string
	for _, sheet := range all {
		listed = append(listed, slices.Sorted(maps.Keys(sheet))...)
	}
	slices.Sort(listed)
	if got := fmt.Sprint(listed, err); got != "[b c] <nil>" {
		t.Errorf("intents: %s", got)
	}
	next := NewIntentLog(client, place)
	if open, err := next.Load(t.Context()); fmt.Sprint(open, err) != "[b c] <nil>" {
		t.Errorf("the next life reads %v, %v", open, err)
	}
	next.Done("b")
	next.Done("c")
	if err := next.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := client.CoordinationV1().Leases("").List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(left.Items) > 0 {
		t.Errorf("%d Leases are left, %v", len(left.Items), err)
	}
}

// TestDamagedIntents: what cannot be read is never taken for nothing.
func TestDamagedIntents(t *testing.T) {
	client := clientset.New()
	place := LogPlace{Namespace: logSpace, Name: logName, InLeases: true}
	l := NewIntentLog(client, place)
	if _, err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustPut(t, l, "a")
	leases := client.CoordinationV1().Leases(logSpace)
	lease, err := leases.Get(t.Context(), logName+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, damaged := range []string{"", "{", `{"a":1}`} {
		lease.Annotations[volume.AnnIntents] = damaged
		if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, told := NewIntentLog(client, place).Load(t.Context())
		_, listed := ListIntents(t.Context(), client, logSpace)
		for _, err := range []error{told, listed} {
			if err == nil || !strings.Contains(err.Error(), "Lease "+logSpace+"/"+logName+"-1 cannot be read") {
				t.Errorf("%q: %v", damaged, err)
			}
		}
	}
}
