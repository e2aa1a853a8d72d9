package kube

import (
	"testing"

	"volplane.dev/volplane/internal/testkit/clientset"
)

// TestIntentsInMemory: a log for a process without rights works as any other, and sends no request to the API server.
func TestIntentsInMemory(t *testing.T) {
	client := clientset.New()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	place := LogPlace{Namespace: "ns", Name: "log", InMemory: true}
	l := NewIntentLog(client, place)
	if open, err := l.Load(t.Context()); err != nil || len(open) > 0 {
		t.Fatal(open, err)
	}
	for _, entry := range []string{"a1", "b1", "a2", "b2"} {
		must(l.Put(t.Context(), entry[:1], entry))
	}
	l.Done("a")
	must(l.Sweep(t.Context()))
	if value, _ := l.Get("b"); value != "b2" || l.Holds("a") {
		t.Errorf("b is %q, and a is there: %t", value, l.Holds("a"))
	}
	l.Expire()
	if open, err := l.Load(t.Context()); err != nil || len(open) != 1 {
		t.Errorf("read anew, it has %v, %v", open, err)
	}
	l.Done("b")
	must(l.Sweep(t.Context()))
	if l.Holds("b") {
		t.Error("b is there still")
	}
	if asked := client.Actions(); len(asked)+len(place.Access()) > 0 {
		t.Errorf("the API server is asked for %v, and rights are declared: %v", asked, place.Access())
	}
}
