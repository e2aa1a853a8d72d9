package kubetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// IsWrite says whether an action changes an object, which is no event.
func IsWrite(a clienttesting.Action) bool {
	return slices.Contains([]string{"create", "update", "patch", "delete"}, a.GetVerb()) &&
		a.GetResource().Resource != "events"
}

// Written compares the verbs and resources of all that was written, but events.
func Written(t testing.TB, client *fake.Clientset, want ...string) {
	t.Helper()
	var got []string
	for _, a := range client.Actions() {
		if IsWrite(a) {
			got = append(got, a.GetVerb()+" "+a.GetResource().Resource)
		}
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
}

// Told waits until these are all events, in any order: type, kind and name of their
// object, reason, message, and how often.
func Told(t testing.TB, client *fake.Clientset, want ...string) {
	t.Helper()
	slices.Sort(want)
	Eventually(t, func() string {
		all, err := client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var got []string
		for i := range all.Items {
			e := &all.Items[i]
			got = append(got, fmt.Sprintf("%s %s %s %s: %s (%d)", e.Type, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason,
				e.Message, e.Count))
		}
		slices.Sort(got)
		return cmp.Diff(want, got, cmpopts.EquateEmpty())
	})
}

// Notes is what was seen. It is safe for concurrent use.
type Notes struct {
	mu  sync.Mutex
	all []string
}

// Add notes one thing.
func (n *Notes) Add(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, what)
}

// Since waits until all is quiet in a bubble, and compares what was noted, in any
// order and however often, since the last time.
func (n *Notes) Since(t testing.TB, want ...string) {
	t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	slices.Sort(n.all)
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Compact(n.all), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("noted (-want +got):\n%s", diff)
	}
	n.all = nil
}
