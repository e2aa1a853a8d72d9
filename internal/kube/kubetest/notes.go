package kubetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/volume"
)

// Writes returns a client's writes, one line for each, without events: with the content of a patch and the
// preconditions of a deletion.
func Writes(c *fake.Clientset) []string {
	var out []string
	for _, a := range c.Actions() {
		if text := written(a); text != "" && a.GetResource().Resource != "events" {
			out = append(out, a.GetVerb()+" "+resourceAsked(a)+" "+text)
		}
	}
	return out
}

func written(a clienttesting.Action) string {
	switch a := a.(type) {
	case clienttesting.PatchActionImpl:
		return a.Name + " " + string(a.Patch)
	case clienttesting.DeleteActionImpl:
		return a.Name + limits(a.DeleteOptions)
	case clienttesting.CreateActionImpl:
		return MetaOf(a.Object).GetName()
	case clienttesting.UpdateActionImpl:
		return MetaOf(a.Object).GetName()
	}
	return ""
}

// limits describes the preconditions of a deletion.
func limits(d metav1.DeleteOptions) string {
	var out strings.Builder
	if p := d.Preconditions; p != nil && p.UID != nil {
		out.WriteString(" uid")
	}
	if p := d.Preconditions; p != nil && p.ResourceVersion != nil {
		out.WriteString(" version")
	}
	if g := d.GracePeriodSeconds; g != nil {
		fmt.Fprintf(&out, " grace %d", *g)
	}
	return out.String()
}

// Written compares the verbs and resources of all writes, except events.
func Written(t testing.TB, client *fake.Clientset, want ...string) {
	t.Helper()
	var got []string
	for _, line := range Writes(client) {
		words := strings.Fields(line)
		resource, _, _ := strings.Cut(words[1], "/")
		got = append(got, words[0]+" "+resource)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
}

// ExpectEvents waits until the events are exactly these, in any order: type, kind and name of their object, reason,
// message, and count.
func ExpectEvents(t testing.TB, client *fake.Clientset, want ...string) {
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
				volume.MessageOf(e.Message, e.Annotations), e.Count))
		}
		slices.Sort(got)
		return cmp.Diff(want, got, cmpopts.EquateEmpty())
	})
}

// Notes are the keys that a controller had to reconcile. They are safe for concurrent use.
type Notes struct {
	mu  sync.Mutex
	all []string
}

// KeyOf returns the key that is written KIND/NAME or KIND/NAMESPACE/NAME.
func KeyOf(text string) controller.Key {
	word := strings.Split(text, "/")
	return controller.Key{Kind: word[0], Namespace: strings.Join(word[1:len(word)-1], ""), Name: word[len(word)-1]}
}

// Instead makes a controller only record its keys, and returns its Reconcile.
func (n *Notes) Instead(
	c *controller.Controller,
) (do func(context.Context, controller.Key) (controller.Result, error)) {
	do, c.Workers = c.Reconcile, 1
	c.Reconcile = func(_ context.Context, key controller.Key) (controller.Result, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.all = append(n.all, key.String())
		return controller.Result{}, nil
	}
	return do
}

// Since waits until all is quiet in a bubble, and compares the keys recorded since the last call, in any order and
// regardless of repetitions.
func (n *Notes) Since(t testing.TB, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := n.take(just(want)); diff != "" {
		t.Errorf("noted (-want +got):\n%s", diff)
		n.take(func([]string) string { return "" })
	}
}

// Await waits, outside of a bubble, until just this is noted, in any order and however
// often, since the last time.
func (n *Notes) Await(t testing.TB, want ...string) {
	t.Helper()
	Eventually(t, func() string { return n.take(just(want)) })
}

// AwaitLast waits until a key is noted, and forgets all.
func (n *Notes) AwaitLast(t testing.TB, key string) {
	t.Helper()
	Eventually(t, func() string {
		return n.take(func(all []string) string {
			if slices.Contains(all, key) {
				return ""
			}
			return key + " is not noted"
		})
	})
}

func just(want []string) (differs func(got []string) string) {
	slices.Sort(want)
	return func(got []string) string { return cmp.Diff(want, got, cmpopts.EquateEmpty()) }
}

// take forgets the recorded keys if they include all wanted ones.
func (n *Notes) take(missing func(all []string) string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	slices.Sort(n.all)
	n.all = slices.Compact(n.all)
	what := missing(n.all)
	if what == "" {
		n.all = nil
	}
	return what
}
